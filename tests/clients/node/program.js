// Shared by the programs of all Node clients: their command line, their output, and the ledger of one run.
//
//   main.js [--settings FILE] COMMAND BOOTSTRAP ...
//
// A program prints each event in a line, "WHAT\tVALUE": "failed" for each error that an application sees, and
// "closed" at the end of a successful run. --settings names a file that `fleet client-config` printed.

import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'

export const PARTITIONS = 12
const EVERY_MS = 100

export function tell(what, value = '') {
  process.stdout.write(`${what}\t${String(value).replaceAll('\n', ' ')}\n`)
}

/** The acknowledged and the received records, and the group's next offset in each partition. */
export class Ledger {
  #acknowledged = new Set()
  #received = new Set()
  #next = new Map()

  acknowledge(value) {
    this.#acknowledged.add(value)
    tell('acknowledged', value)
  }

  /** A group may repeat records that it has not committed ("repeated"), but may skip none ("skipped"). */
  receive(partition, offset, value) {
    const next = this.#next.get(partition) ?? 0n
    if (offset < next) {
      tell('repeated', `${partition} ${offset}`)
      return
    }
    if (offset > next) tell('skipped', `${partition} ${next} to ${offset}`)
    this.#next.set(partition, offset + 1n)
    this.#received.add(value)
    tell('received', value)
  }

  isComplete() {
    return [...this.#acknowledged].every(value => this.#received.has(value))
  }
}

/** Send records, in order in each partition, until standard input ends and every record has its outcome. */
export async function produceUntilEnd(ledger, send) {
  let stopping = false
  async function fill(partition) {
    for (let number = 0; !stopping; number++) {
      const value = `${partition}-${number}`
      try {
        await send(partition, value)
        ledger.acknowledge(value)
      } catch (error) {
        tell('failed', `produce: ${error}`)
        process.exitCode = 1
      }
      await sleep(EVERY_MS)
    }
  }
  const filling = Array.from({ length: PARTITIONS }, (_, partition) => fill(partition))
  process.stdin.resume()
  await once(process.stdin, 'end')
  stopping = true
  await Promise.all(filling)
}

export async function until(condition) {
  while (!(await condition())) await sleep(50)
}

/** The values of transaction `number` of `count`: every second one is aborted, but not the last one. */
export function planned(number, count) {
  const commit = (count - number) % 2 === 1
  const what = commit ? 'committed' : 'aborted'
  return { commit, what, values: Array.from({ length: PARTITIONS }, (_, partition) => `${what}${number}-${partition}`) }
}

/** The settings that `fleet client-config` printed; empty without a file. */
function load(file) {
  if (file === undefined) return {}
  return new Function('require', `${readFileSync(file, 'utf8')}\nreturn settings`)()
}

/**
 * Run the command of the command line.
 *
 * commands: by name, { names, run }: what its arguments are called, and what takes settings, bootstrap addresses and
 * the arguments.
 */
export async function main(commands) {
  const words = process.argv.slice(2)
  const file = words[0] === '--settings' ? words.splice(0, 2)[1] : undefined
  const [command, bootstrap, ...given] = words
  const chosen = commands[command]
  if (chosen === undefined || given.length !== chosen.names.length) {
    for (const [name, { names }] of Object.entries(commands)) {
      process.stderr.write(`main.js [--settings FILE] ${[name, 'BOOTSTRAP', ...names].join(' ')}\n`)
    }
    process.exit(2)
  }
  try {
    await chosen.run(load(file), bootstrap.split(','), ...given)
    if (!process.exitCode) tell('closed')
  } catch (error) {
    tell('failed', error.stack)
    process.exitCode = 1
  }
  // A client may leave timers behind that would keep the program.
  process.stdout.write('', () => process.exit())
}
