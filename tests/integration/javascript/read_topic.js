// Read a number of messages from the first offset of a topic, and print their values:
// read_topic.js PACKAGE BOOTSTRAP TOPIC COUNT

const [name, bootstrap, topic, text] = process.argv.slice(2);
const count = Number(text);

async function withKafkajs() {
  const { Kafka, logLevel } = require("kafkajs");
  const consumer = new Kafka({ brokers: bootstrap.split(","), logLevel: logLevel.NOTHING }).consumer({
    groupId: "read-topic-kafkajs",
  });
  await consumer.connect();
  await consumer.subscribe({ topics: [topic], fromBeginning: true });
  const values = [];
  await new Promise((resolve) => {
    consumer.run({
      eachMessage: async ({ message }) => {
        values.push(message.value.toString());
        if (values.length === count) resolve();
      },
    });
  });
  await consumer.disconnect();
  return values;
}

async function withPlatformatic() {
  const { Consumer, MessagesStreamModes, stringDeserializers } = require("@platformatic/kafka");
  const consumer = new Consumer({
    groupId: "read-topic-platformatic",
    clientId: "read-topic",
    bootstrapBrokers: bootstrap.split(","),
    deserializers: stringDeserializers,
  });
  const stream = await consumer.consume({ topics: [topic], mode: MessagesStreamModes.EARLIEST });
  const values = [];
  for await (const message of stream) {
    values.push(message.value);
    if (values.length === count) break;
  }
  await consumer.close(true);
  return values;
}

(name === "kafkajs" ? withKafkajs : withPlatformatic)().then((values) => {
  console.log(values.join("\n"));
  process.exit(0);
});
