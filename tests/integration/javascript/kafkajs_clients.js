// kafkajs: produce, consume in a group, resume, admin. Prints the results as one JSON object.
const { Kafka, CompressionTypes, logLevel } = require('kafkajs')

const [bootstrap, topic, group] = process.argv.slice(2)
// The time limit is long, because the machine may be busy.
const patience = { connectionTimeout: 60_000, authenticationTimeout: 60_000, requestTimeout: 60_000 }
const kafka = new Kafka({ brokers: [bootstrap], logLevel: logLevel.ERROR, ...patience })

async function consume (count) {
  const consumer = kafka.consumer({ groupId: group, heartbeatInterval: 200, sessionTimeout: 60_000 })
  const seen = []
  await consumer.connect()
  await consumer.subscribe({ topic, fromBeginning: true })
  await new Promise((resolve, reject) => {
    consumer.on(consumer.events.CRASH, event => reject(event.payload.error))
    consumer.run({
      eachMessage: async ({ partition, message }) => {
        seen.push({
          partition,
          offset: message.offset,
          key: message.key && message.key.toString(),
          value: message.value && message.value.toString(),
          headers: Object.fromEntries(Object.entries(message.headers).map(([k, v]) => [k, v.toString()])),
          timestamp: message.timestamp
        })
        if (seen.length === count) resolve()
      }
    })
  })
  await consumer.disconnect()
  return seen
}

async function main () {
  const report = {}
  const admin = kafka.admin()
  await admin.connect()
  await admin.createTopics({ topics: [{ topic, numPartitions: 2, replicationFactor: 1 }], waitForLeaders: true })
  const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 })
  await producer.connect()
  await producer.send({
    topic,
    compression: CompressionTypes.GZIP,
    messages: [
      { partition: 0, key: 'k', value: 'zipped', headers: { h: 'v' }, timestamp: '1600000000000' },
      { partition: 0, key: 'k', value: null }
    ]
  })
  report.first = await consume(2)
  await producer.send({ topic, messages: [{ partition: 1, value: 'later' }] })
  report.second = await consume(1)
  await producer.disconnect()
  report.offsets = await admin.fetchTopicOffsets(topic)
  report.committed = await admin.fetchOffsets({ groupId: group, topics: [topic] })
  report.groups = (await admin.listGroups()).groups.map(entry => entry.groupId)
  report.state = (await admin.describeGroups([group])).groups[0].state
  report.cluster = await admin.describeCluster()
  report.configs = (await admin.describeConfigs({
    includeSynonyms: true, resources: [{ type: 2, name: topic, configNames: ['retention.ms'] }]
  })).resources[0].configEntries
  await admin.createPartitions({ topicPartitions: [{ topic, count: 3 }] })
  report.partitions = (await admin.fetchTopicMetadata({ topics: [topic] })).topics[0].partitions.length
  await admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: '1' }] })
  report.low = (await admin.fetchTopicOffsets(topic)).find(entry => entry.partition === 0).low
  await admin.deleteGroups([group])
  await admin.deleteTopics({ topics: [topic] })
  report.topics = await admin.listTopics()
  await admin.disconnect()
  console.log(JSON.stringify(report))
}

main().catch(error => { console.error(error); process.exit(1) })
