// @platformatic/kafka: produce with its codecs, consume in a group, resume, admin. Prints one JSON object.
const path = require('node:path')
const { pathToFileURL } = require('node:url')

const [bootstrap, topic, group] = process.argv.slice(2)

async function main () {
  // This is an ES module, and "import" ignores NODE_PATH.
  const entry = path.join(process.env.NODE_PATH, '@platformatic/kafka/dist/index.js')
  const {
    Admin, Consumer, Producer, MessagesStreamModes, ProduceAcks, stringDeserializers, stringSerializers
  } = await import(pathToFileURL(entry))
  const base = { clientId: 'platformatic', bootstrapBrokers: [bootstrap], connectTimeout: 60_000, timeout: 60_000 }
  const report = { codecs: [] }

  const admin = new Admin(base)
  const [created] = await admin.createTopics({ topics: [topic], partitions: 1, replicas: 1 })
  report.created = created.name

  const producer = new Producer({ ...base, serializers: stringSerializers, idempotent: true, acks: ProduceAcks.ALL })
  for (const compression of ['none', 'gzip', 'snappy', 'lz4', 'zstd']) {
    try {
      await producer.send({
        compression,
        messages: [{ topic, partition: 0, key: compression, value: 'value', headers: { codec: compression } }]
      })
      report.codecs.push(compression)
    } catch (error) {
      // The codecs depend on the version of Node.js. For example, zstd needs a newer version.
      // A missing codec is no fault of the broker.
      const causes = error.errors ?? [error]
      if (!causes.every(cause => cause.code === 'PLT_KFK_UNSUPPORTED_COMPRESSION')) throw error
    }
  }
  await producer.close()

  async function consume (count) {
    const consumer = new Consumer({ ...base, groupId: group, deserializers: stringDeserializers })
    const stream = await consumer.consume({
      topics: [topic], mode: MessagesStreamModes.COMMITTED, fallbackMode: 'earliest', autocommit: false,
      sessionTimeout: 60_000, heartbeatInterval: 500, maxWaitTime: 200
    })
    const seen = []
    for await (const message of stream) {
      seen.push({ offset: String(message.offset), key: message.key, headers: Object.fromEntries(message.headers) })
      await message.commit()
      if (seen.length === count) break
    }
    await consumer.close(true)
    return seen
  }
  report.first = await consume(report.codecs.length - 1)
  report.second = await consume(1)
  report.groups = Array.from((await admin.listGroups()).keys())
  report.state = (await admin.describeGroups({ groups: [group] })).get(group).state
  const [held] = await admin.listConsumerGroupOffsets({ groups: [group] })
  report.committed = String(held.topics[0].partitions[0].committedOffset)
  await admin.createPartitions({ topics: [{ name: topic, count: 2 }] })
  report.partitions = (await admin.metadata({ topics: [topic], forceUpdate: true })).topics.get(topic).partitionsCount
  await admin.deleteGroups({ groups: [group] })
  await admin.deleteTopics({ topics: [topic] })
  report.topics = await admin.listTopics()
  await admin.close()
  console.log(JSON.stringify(report))
}

main().catch(error => { console.error(error); process.exit(1) })
