// A program around kafkajs for tests; see `commands`. program.js describes the command line and the output.

import kafkajs from 'kafkajs'

import { Ledger, PARTITIONS, main, planned, produceUntilEnd, tell, until } from './program.js'

const { Kafka, ConfigResourceTypes, Partitioners, logLevel } = kafkajs

/** Lines of the library's own log, as "log". */
function logCreator() {
  return ({ label, log: { message, error, broker } }) => tell('log', [label, message, error, broker].filter(Boolean).join(' '))
}

function connect(settings, brokers) {
  const level = process.env.KAFKAJS_LEVEL === 'DEBUG' ? logLevel.DEBUG : logLevel.WARN
  return new Kafka({ ...settings.client, brokers, logLevel: level, logCreator })
}

function producerOf(kafka, settings, more) {
  // One request in flight at each broker: with more, a request that is sent again is out of sequence.
  const own = { idempotent: true, maxInFlightRequests: 1, createPartitioner: Partitioners.DefaultPartitioner }
  return kafka.producer({ ...settings.producer, ...own, ...more })
}

/**
 * A producer and a member of a group until standard input ends.
 *
 * Each record is sent by itself. kafkajs 2.2.4 sends records again that are still in flight at one broker when the
 * same call fails at another broker, under new sequence numbers: the broker keeps both.
 */
async function work(settings, brokers, topic, groupId) {
  const kafka = connect(settings, brokers)
  const producer = producerOf(kafka, settings)
  const consumer = kafka.consumer({ ...settings.consumer, groupId })
  const ledger = new Ledger()
  consumer.on('consumer.crash', ({ payload: { error, restart } }) => tell('crashed', `${restart} ${error}`))
  consumer.on('consumer.group_join', ({ payload: { duration } }) => tell('joined', duration))
  await producer.connect()
  await consumer.connect()
  await consumer.subscribe({ topic, fromBeginning: true })
  await consumer.run({
    eachMessage: async ({ partition, message: { offset, value } }) =>
      ledger.receive(partition, BigInt(offset), value.toString())
  })
  await produceUntilEnd(ledger, (partition, value) => producer.send({ topic, messages: [{ partition, value }] }))
  await until(() => ledger.isComplete())
  await consumer.disconnect()
  await producer.disconnect()
}

/** Topics, their configuration, groups and the cluster: prints each answer. */
async function administer(settings, brokers, name, groupId) {
  const admin = connect(settings, brokers).admin()
  await admin.connect()
  const made = await admin.createTopics({ topics: [{ topic: name, numPartitions: 5, replicationFactor: 3 }] })
  tell('created', made)
  await until(async () => (await admin.listTopics()).includes(name))
  const { topics } = await admin.fetchTopicMetadata({ topics: [name] })
  tell('partitions', topics[0].partitions.length)
  const resource = { type: ConfigResourceTypes.TOPIC, name }
  const retention = async () => {
    const { resources } = await admin.describeConfigs({
      resources: [{ ...resource, configNames: ['retention.ms'] }],
      includeSynonyms: false
    })
    return resources[0].configEntries.map(each => each.configValue)
  }
  tell('retention', await retention())
  await admin.alterConfigs({
    validateOnly: false,
    resources: [{ ...resource, configEntries: [{ name: 'retention.ms', value: '123456789' }] }]
  })
  // The answer may come from a broker that does not know the change yet.
  await until(async () => (await retention()).includes('123456789'))
  tell('retention', await retention())
  const broker = { type: ConfigResourceTypes.BROKER, name: '1', configNames: ['advertised.listeners'] }
  const { resources } = await admin.describeConfigs({ resources: [broker], includeSynonyms: true })
  tell('advertised', resources[0].configEntries.map(each => each.configValue))
  const { groups } = await admin.listGroups()
  tell('group', groups.filter(each => each.groupId === groupId).map(each => each.protocolType))
  const described = await admin.describeGroups([groupId])
  tell('group state', described.groups.map(each => each.state))
  const ends = await admin.fetchOffsets({ groupId, topics: [groupId] })
  tell('offsets', ends[0].partitions.map(each => `${each.partition} ${each.offset}`).sort())
  const { clusterId, controller, brokers: nodes } = await admin.describeCluster()
  tell('cluster', clusterId)
  tell('controller is a broker', nodes.some(each => each.nodeId === controller))
  tell('brokers', nodes.map(each => each.nodeId).sort())
  await admin.deleteTopics({ topics: [name] })
  await until(async () => !(await admin.listTopics()).includes(name))
  tell('deleted', name !== '')
  await admin.disconnect()
}

/** The brokers' addresses that the client knows: "broker", "ID HOST:PORT". */
async function addresses(settings, brokers) {
  const admin = connect(settings, brokers).admin()
  await admin.connect()
  for (const { nodeId, host, port } of (await admin.describeCluster()).brokers) tell('broker', `${nodeId} ${host}:${port}`)
  await admin.disconnect()
}

/**
 * Transactions with a record in each partition, of which every second one is aborted. Prints each record as
 * "committed" or "aborted". "fenced" is the error of a transaction that begins when a successor has taken the id.
 */
async function transact(settings, brokers, topic, transactionalId, number) {
  const kafka = connect(settings, brokers)
  const producer = producerOf(kafka, settings, { transactionalId })
  await producer.connect()
  const count = Number(number)
  for (let each = 0; each < count; each++) {
    const { commit, what, values } = planned(each, count)
    const transaction = await producer.transaction()
    for (const [partition, value] of values.entries()) await transaction.send({ topic, messages: [{ partition, value }] })
    await (commit ? transaction.commit() : transaction.abort())
    values.forEach(value => tell(what, value))
  }
  const successor = producerOf(kafka, settings, { transactionalId })
  await successor.connect()
  await (await successor.transaction()).abort()
  try {
    const transaction = await producer.transaction()
    await transaction.send({ topic, messages: [{ partition: PARTITIONS - 1, value: 'fenced' }] })
    await transaction.commit()
    tell('fenced', 0)
  } catch (error) {
    tell('fenced', error.code ?? error.cause?.code ?? error)
  }
  await successor.disconnect()
  await producer.disconnect()
}

await main({
  work: { names: ['TOPIC', 'GROUP', 'classic'], run: work },
  admin: { names: ['NAME', 'GROUP'], run: administer },
  addresses: { names: [], run: addresses },
  transact: { names: ['TOPIC', 'ID', 'TRANSACTIONS'], run: transact }
})
