// kafkajs: begin a transaction. Prints one JSON object with what the user is told, and how often it was tried.
const { Kafka, logLevel } = require('kafkajs')

const [bootstrap] = process.argv.slice(2)

async function main () {
  let requests = 0
  const kafka = new Kafka({ clientId: 'kafkajs', brokers: [bootstrap], logLevel: logLevel.NOTHING })
  const producer = kafka.producer({ transactionalId: 'kafkajs', idempotent: true, maxInFlightRequests: 1 })
  producer.on(producer.events.REQUEST, ({ payload }) => {
    if (payload.apiName === 'InitProducerId') requests += 1
  })
  try {
    await producer.connect()
    await producer.transaction()
    console.log(JSON.stringify({ accepted: true }))
  } catch (error) {
    console.log(JSON.stringify({ type: error.type, retriable: error.retriable, requests }))
  }
  await producer.disconnect()
}

main()
