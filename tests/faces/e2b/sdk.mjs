// Drives a server with the unmodified JavaScript SDK of E2B, and prints what it saw as JSON.
import { createRequire } from 'node:module'
import { pathToFileURL } from 'node:url'

const { Sandbox } = createRequire(pathToFileURL(process.env.E2B_MODULES + '/'))('e2b')
const seen = {}
const name = (error) => error.constructor.name
const refused = async (work) => { try { await work(); return 'done' } catch (error) { return name(error) } }

const sandbox = await Sandbox.create({ timeoutMs: 60_000, metadata: { userId: 'js' }, envs: { GREETING: 'hello' } })
seen.run = await sandbox.commands.run('echo "$GREETING"; echo bad >&2; pwd').then(({ stdout, stderr, exitCode }) => [stdout, stderr, exitCode])
seen.exit = await sandbox.commands.run('exit 3').catch((error) => [name(error), error.exitCode])
const said = []
const handle = await sandbox.commands.run('while read x; do echo got $x; done', { background: true, stdin: true, onStdout: (data) => said.push(data) })
await sandbox.commands.sendStdin(handle.pid, 'one\ntwo\n')
seen.listed = (await sandbox.commands.list()).some((each) => each.pid === handle.pid)
await sandbox.commands.closeStdin(handle.pid)
await handle.wait()
seen.stdin = said.join('')
seen.killed = await (await sandbox.commands.run('sleep 100', { background: true })).kill()
seen.written = (await sandbox.files.write('dir/a.txt', 'text é')).path
seen.read = await sandbox.files.read('/home/user/dir/a.txt')
seen.bytes = [...(await sandbox.files.read('dir/a.txt', { format: 'bytes' }))].length
seen.several = (await sandbox.files.write([{ path: 'm1', data: '1' }, { path: 'm2', data: new Uint8Array([1, 2]).buffer }])).length
seen.names = (await sandbox.files.list('dir')).map((each) => each.name)
seen.exists = [await sandbox.files.exists('dir/a.txt'), await sandbox.files.exists('none')]
seen.made = [await sandbox.files.makeDir('d'), await sandbox.files.makeDir('d')]
seen.renamed = (await sandbox.files.rename('m1', 'm3')).path
await sandbox.files.remove('m3')
seen.missing = await refused(() => sandbox.files.read('none'))
const events = []
const watch = await sandbox.files.watchDir('dir', (event) => events.push([event.type, event.name]))
await sandbox.files.write('dir/new', 'x')
for (let looks = 0; looks < 600 && !events.length; looks++) await new Promise((done) => setTimeout(done, 100))
await watch.stop()
seen.watched = events[0]
seen.signed = await (await fetch(await sandbox.downloadUrl('dir/a.txt'))).text()
seen.info = (await sandbox.getInfo()).metadata
const pages = Sandbox.list({ query: { metadata: { userId: 'js' } } })
seen.found = (await pages.nextItems()).map((each) => each.sandboxId).includes(sandbox.sandboxId)
await sandbox.setTimeout(90_000)
seen.again = (await (await Sandbox.connect(sandbox.sandboxId)).commands.run('echo again')).stdout
const typed = []
const terminal = await sandbox.pty.create({ cols: 90, rows: 20, onData: (data) => typed.push(Buffer.from(data).toString()) })
await sandbox.pty.sendInput(terminal.pid, new TextEncoder().encode('stty size; exit\n'))
await terminal.wait().catch(() => undefined)
seen.terminal = typed.join('').includes('20 90')
seen.paused = [await sandbox.pause(), await sandbox.isRunning(), await (await sandbox.connect()).isRunning()]
seen.root = await refused(() => sandbox.commands.run('id', { user: 'root' }))
seen.running = [await sandbox.isRunning(), await sandbox.kill(), await sandbox.isRunning()]
seen.gone = await refused(() => sandbox.commands.run('true'))
process.stdout.write(JSON.stringify(seen))
