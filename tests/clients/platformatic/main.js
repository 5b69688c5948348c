// A program around @platformatic/kafka for tests. program.js describes the command line and the output.
//
// Version 1: version 2 needs Node 22.

import { setTimeout as sleep } from 'node:timers/promises'

import { Admin, ConfigResourceTypes, Consumer, IncrementalAlterConfigOperationTypes, Producer, stringDeserializers, stringSerializers } from '@platformatic/kafka'

import { Ledger, main, planned, produceUntilEnd, tell, until } from './program.js'

const CLIENT_ID = 'platformatic'
const RETRIES = 3
const COMMIT_EVERY_MS = 200

function common(settings, bootstrapBrokers) {
  return { clientId: CLIENT_ID, ...settings.client, bootstrapBrokers }
}

/**
 * An idempotent producer. By itself it never gives a record up, and it keeps the address that a broker had at the
 * first attempt: with an end to its retries, the next call asks where the broker is.
 */
function producerOf(settings, brokers, more) {
  return new Producer({
    ...common(settings, brokers),
    ...settings.producer,
    idempotent: true,
    retries: RETRIES,
    serializers: stringSerializers,
    ...more
  })
}

/** Every error, as one line: an error of this library may hold several. */
function messageOf(error) {
  const inner = error.errors ?? (error.cause ? [error.cause] : [])
  return [error.message, ...inner.map(messageOf)].join('; ')
}

/** A member of a group, which restarts when its stream fails ("crashed"). */
class Member {
  #open
  #make
  #topic
  #ledger
  #stopping = false
  #offsets = new Map()

  constructor(make, topic, ledger) {
    this.#make = make
    this.#topic = topic
    this.#ledger = ledger
  }

  async run() {
    while (!this.#stopping) {
      const consumer = this.#make()
      consumer.on('consumer:group:join', () => tell('joined'))
      consumer.on('error', error => tell('log', messageOf(error)))
      try {
        const stream = await consumer.consume({ topics: [this.#topic], autocommit: false, mode: 'committed', fallbackMode: 'earliest', maxWaitTime: 500 })
        this.#open = { consumer, stream }
        const committing = this.#keepCommitting(consumer, stream)
        for await (const { topic, partition, offset, value } of stream) {
          this.#ledger.receive(partition, offset, value)
          this.#offsets.set(partition, { topic, partition, offset: offset + 1n, leaderEpoch: -1 })
        }
        await committing
        await this.#commit(consumer)
      } catch (error) {
        tell('crashed', messageOf(error))
      }
      this.#offsets.clear()
      this.#open = undefined
      await consumer.close(true).catch(error => tell('log', `close: ${messageOf(error)}`))
    }
  }

  /** Leave the group after committing all received records. */
  async stop() {
    this.#stopping = true
    await this.#open?.stream.close()
  }

  async #keepCommitting(consumer, stream) {
    while (!stream.closed && !stream.destroyed && !this.#stopping) {
      await sleep(COMMIT_EVERY_MS)
      await this.#commit(consumer).catch(error => tell('log', `commit: ${messageOf(error)}`))
    }
  }

  async #commit(consumer) {
    const offsets = [...this.#offsets.values()]
    if (offsets.length === 0) return
    this.#offsets.clear()
    try {
      await consumer.commit({ offsets })
    } catch (error) {
      for (const each of offsets) if (!this.#offsets.has(each.partition)) this.#offsets.set(each.partition, each)
      throw error
    }
  }
}

/** A producer and a member of a group until standard input ends. A record is sent until it is acknowledged. */
async function work(settings, brokers, topic, groupId, groupProtocol) {
  const producer = producerOf(settings, brokers)
  const ledger = new Ledger()
  const make = () =>
    new Consumer({ ...common(settings, brokers), ...settings.consumer, groupId, groupProtocol, deserializers: stringDeserializers })
  const member = new Member(make, topic, ledger)
  const running = member.run()
  await producer.initIdempotentProducer({})
  await produceUntilEnd(ledger, async (partition, value) => {
    for (;;) {
      try {
        return await producer.send({ messages: [{ topic, partition, value }] })
      } catch (error) {
        tell('retried', messageOf(error))
      }
    }
  })
  await until(() => ledger.isComplete())
  await member.stop()
  await running
  await producer.close()
}

/** Topics, their configuration, groups and the cluster: prints each answer. */
async function administer(settings, brokers, name, groupId) {
  const admin = new Admin(common(settings, brokers))
  const made = await admin.createTopics({ topics: [name], partitions: 5, replicas: 3 })
  tell('created', made.length === 1)
  await until(async () => (await admin.listTopics()).includes(name))
  const { topics } = await admin.metadata({ topics: [name], forceUpdate: true })
  tell('partitions', topics.get(name).partitionsCount)
  const resource = { resourceType: ConfigResourceTypes.TOPIC, resourceName: name }
  const retention = async () => {
    const [{ configs }] = await admin.describeConfigs({ resources: [{ ...resource, configurationKeys: ['retention.ms'] }] })
    return configs.map(each => each.value)
  }
  tell('retention', await retention())
  const change = { name: 'retention.ms', configOperation: IncrementalAlterConfigOperationTypes.SET, value: '123456789' }
  await admin.incrementalAlterConfigs({ resources: [{ ...resource, configs: [change] }] })
  // The answer may come from a broker that does not know the change yet.
  await until(async () => (await retention()).includes('123456789'))
  tell('retention', await retention())
  const broker = { resourceType: ConfigResourceTypes.BROKER, resourceName: '1', configurationKeys: ['advertised.listeners'] }
  const [{ configs }] = await admin.describeConfigs({ resources: [broker], includeSynonyms: true })
  tell('advertised', configs.map(each => each.value))
  tell('group', (await admin.listGroups()).get(groupId)?.protocolType)
  tell('group state', (await admin.describeGroups({ groups: [groupId] })).get(groupId).state)
  const [{ topics: ends }] = await admin.listConsumerGroupOffsets({ groups: [groupId] })
  tell('offsets', ends.flatMap(each => each.partitions.map(p => `${p.partitionIndex} ${p.committedOffset}`)).sort())
  const { id, controllerId, brokers: nodes } = await admin.metadata({ topics: [], forceUpdate: true })
  tell('cluster', id)
  tell('controller is a broker', nodes.has(controllerId))
  tell('brokers', [...nodes.keys()].sort())
  await admin.deleteTopics({ topics: [name] })
  await until(async () => !(await admin.listTopics()).includes(name))
  tell('deleted', true)
  await admin.close()
}

/** The brokers' addresses that the client knows: "broker", "ID HOST:PORT". */
async function addresses(settings, brokers) {
  const admin = new Admin(common(settings, brokers))
  const { brokers: nodes } = await admin.metadata({ topics: [] })
  for (const [id, { host, port }] of nodes) tell('broker', `${id} ${host}:${port}`)
  await admin.close()
}

/**
 * Transactions with a record in each partition, of which every second one is aborted. Prints each record as
 * "committed" or "aborted". No successor takes the id: version 1.35 names producer id 0 and epoch 0 where it means
 * none, and brokers refuse that for an id that is in use.
 */
async function transact(settings, brokers, topic, transactionalId, number) {
  const producer = producerOf(settings, brokers, { transactionalId })
  const count = Number(number)
  for (let each = 0; each < count; each++) {
    const { commit, what, values } = planned(each, count)
    const transaction = await producer.beginTransaction()
    for (const [partition, value] of values.entries()) await transaction.send({ messages: [{ topic, partition, value }] })
    await (commit ? transaction.commit() : transaction.abort())
    values.forEach(value => tell(what, value))
  }
  await producer.close()
}

await main({
  work: { names: ['TOPIC', 'GROUP', 'classic|consumer'], run: work },
  admin: { names: ['NAME', 'GROUP'], run: administer },
  addresses: { names: [], run: addresses },
  transact: { names: ['TOPIC', 'ID', 'TRANSACTIONS'], run: transact }
})
