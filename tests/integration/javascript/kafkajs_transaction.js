// kafkajs: abort a transaction, commit the next one. Prints one JSON object.
const { Kafka, logLevel } = require('kafkajs')

const [bootstrap, topic] = process.argv.slice(2)

async function main () {
  const kafka = new Kafka({ clientId: 'kafkajs', brokers: [bootstrap], logLevel: logLevel.NOTHING })
  const producer = kafka.producer({ transactionalId: topic, idempotent: true, maxInFlightRequests: 1 })
  await producer.connect()
  for (const value of ['aborted', 'committed']) {
    const transaction = await producer.transaction()
    await transaction.send({ topic, messages: [{ value }] })
    if (value === 'aborted') await transaction.abort()
    else await transaction.commit()
  }
  await producer.disconnect()
  console.log(JSON.stringify({ done: true }))
}

main()
