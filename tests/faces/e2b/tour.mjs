// Calls each method of E2B's unmodified SDKs for JavaScript that works here, and each that is refused; prints both.
import { createRequire } from 'node:module'
import { pathToFileURL } from 'node:url'
import assert from 'node:assert'

const require = createRequire(pathToFileURL(process.env.E2B_MODULES + '/'))
const { Template, Volume, Secret } = require('e2b')
const { Sandbox } = require('@e2b/code-interpreter')
const called = {}

// Notes the calls of a class by name, below the given word.
const noted = (word, ...objects) => {
  const names = (called[word] ??= new Set())
  for (const object of objects) {
    for (let at = object; at && at !== Object.prototype && at !== Function.prototype; at = Object.getPrototypeOf(at)) {
      for (const [name, told] of Object.entries(Object.getOwnPropertyDescriptors(at))) {
        if (name === 'constructor' || !told.configurable || told.noted) continue
        const wrap = (work) => function (...args) { names.add(name); return work.apply(this, args) }
        if (typeof told.value === 'function') Object.defineProperty(at, name, { ...told, value: wrap(told.value) })
        else if (told.get) Object.defineProperty(at, name, { ...told, get: wrap(told.get) })
      }
    }
  }
}

noted('Sandbox', Sandbox.prototype, Sandbox)
const sandbox = await Sandbox.create({ timeoutMs: 120_000, metadata: { tour: 'js' } })
const { files, commands, pty, git } = sandbox
noted('Filesystem', Object.getPrototypeOf(files))
noted('Commands', Object.getPrototypeOf(commands))
noted('Pty', Object.getPrototypeOf(pty))
noted('Git', Object.getPrototypeOf(git))
const pages = Sandbox.list()
noted('SandboxPaginator', Object.getPrototypeOf(pages))
assert(pages.hasNext)
assert((await pages.nextItems()).some((each) => each.sandboxId === sandbox.sandboxId))
assert.equal(pages.nextToken, undefined)
assert.deepEqual((await sandbox.getInfo()).metadata, { tour: 'js' })
assert.equal((await Sandbox.getFullInfo(sandbox.sandboxId)).sandboxId, sandbox.sandboxId)
await sandbox.setTimeout(100_000)
assert(await sandbox.isRunning())
assert(await sandbox.pause())
await sandbox.connect()
assert(await sandbox.betaPause())
await sandbox.connect()
assert((await sandbox.getMetrics())[0].memTotal > 0)
assert(sandbox.getHost(80).startsWith('80-'))
await assert.rejects(sandbox.updateNetwork({ allowOut: ['example.com'] }))
assert((await sandbox.uploadUrl('a')).includes('signature'))
assert((await sandbox.downloadUrl('a')).includes('signature'))

assert(await files.makeDir('d'))
let seen = 0
const watch = await files.watchDir('d', () => { seen += 1 })
noted('WatchHandle', Object.getPrototypeOf(watch))
await files.write('d/a', 'text')
await files.writeFiles([{ path: 'd/b', data: 'b' }])
for (let looks = 0; looks < 600 && !seen; looks++) await new Promise((done) => setTimeout(done, 100))
assert(seen)
await watch.stop()
assert.equal(await files.read('d/a'), 'text')
assert.equal((await files.list('d')).length, 2)
assert(await files.exists('d/a'))
assert.equal((await files.getInfo('d/a')).size, 4)
await files.rename('d/a', 'd/c')
await files.remove('d')

let handle = await commands.run('cat; exit 3', { background: true, stdin: true })
noted('CommandHandle', Object.getPrototypeOf(handle))
assert(commands.supportsStdinClose)
assert((await commands.list()).some((each) => each.pid === handle.pid))
await commands.sendStdin(handle.pid, '1')
await handle.sendStdin('2')
await handle.disconnect()
handle = await commands.connect(handle.pid)
await handle.closeStdin()
await assert.rejects(handle.wait(), { name: 'CommandExitError' })
assert.deepEqual([handle.exitCode, handle.stderr, handle.error], [3, '', 'exit status 3'])
assert.equal(typeof handle.stdout, 'string')
const reader = await commands.run('cat', { background: true, stdin: true })
await commands.closeStdin(reader.pid)
assert.equal((await reader.wait()).exitCode, 0)
assert(await (await commands.run('sleep 100', { background: true })).kill())
assert(await commands.kill((await commands.run('sleep 100', { background: true })).pid))
const terminal = await pty.create({ cols: 80, rows: 20, onData: () => undefined })
await pty.resize(terminal.pid, { cols: 90, rows: 20 })
await pty.sendInput(terminal.pid, new TextEncoder().encode('true\n'))
await terminal.disconnect()
await pty.connect(terminal.pid, { onData: () => undefined })
assert(await pty.kill(terminal.pid))

await git.init('up', { bare: true })
await git.configureUser('A', 'a@example.com')
await git.init('repo', { initialBranch: 'main' })
await files.write('repo/a.txt', 'a')
await git.add('repo')
await git.commit('repo', 'first')
assert((await git.status('repo')).isClean)
await git.remoteAdd('repo', 'origin', '/home/user/up')
assert.equal(await git.remoteGet('repo', 'origin'), '/home/user/up')
await git.push('repo', { remote: 'origin', branch: 'main' })
await git.clone('/home/user/up', { path: 'copy', branch: 'main' })
await git.pull('copy')
await git.createBranch('repo', 'other')
await git.checkoutBranch('repo', 'main')
assert((await git.branches('repo')).branches.includes('other'))
await git.deleteBranch('repo', 'other', { force: true })
await files.write('repo/a.txt', 'b')
await git.restore('repo', { paths: ['a.txt'] })
await git.reset('repo', { mode: 'hard' })
await git.setConfig('core.editor', 'true')
assert.equal(await git.getConfig('core.editor'), 'true')
await git.dangerouslyAuthenticate({ username: 'u', password: 't' })

const ran = await sandbox.runCode('print("one"); 6 * 7')
assert.deepEqual([ran.text, ran.logs.stdout], ['42', ['one\n']])
const context = await sandbox.createCodeContext()
assert((await sandbox.listCodeContexts()).some((each) => each.id === context.id))
assert.equal((await sandbox.runCode('1 / 0', { context })).error.name, 'ZeroDivisionError')
await sandbox.restartCodeContext(context)
await sandbox.removeCodeContext(context)

const described = Template().fromImage('debian')
const refusals = {
  'Sandbox.createSnapshot': () => sandbox.createSnapshot(),
  'Sandbox.listSnapshots': () => sandbox.listSnapshots().nextItems(),
  'Sandbox.deleteSnapshot': () => Sandbox.deleteSnapshot('x'),
  'Sandbox.fork': () => sandbox.fork(),
  'Sandbox.getMcpToken': () => sandbox.getMcpToken(),
  'Template.build': () => Template.build(described, 'x'),
  'Template.buildInBackground': () => Template.buildInBackground(described, 'x'),
  'Template.getBuildStatus': () => Template.getBuildStatus({ templateId: 'x', buildId: 'y' }),
  'Template.exists': () => Template.exists('x'),
  'Template.aliasExists': () => Template.aliasExists('x'),
  'Template.getTags': () => Template.getTags('x'),
  'Template.assignTags': () => Template.assignTags('x:a', ['b']),
  'Template.removeTags': () => Template.removeTags('x', ['b']),
  'Volume.create': () => Volume.create('x'),
  'Volume.connect': () => Volume.connect('x'),
  'Volume.list': () => Volume.list(),
  'Volume.getInfo': () => Volume.getInfo('x'),
  'Volume.destroy': () => Volume.destroy('x'),
  'Secret.create': () => Secret.create('x', 'y'),
  'Secret.update': () => Secret.update('x', 'y'),
  'Secret.getInfo': () => Secret.getInfo('x'),
  'Secret.exists': () => Secret.exists('x'),
  'Secret.list': () => Secret.list().nextItems(),
  'Secret.destroy': () => Secret.destroy('x'),
}
const refused = {}
for (const [name, work] of Object.entries(refusals)) {
  refused[name] = await Promise.resolve().then(work).then(() => 'done', (error) => `${error.name}: ${error.message}`)
}
assert(await sandbox.kill())
const names = Object.fromEntries(Object.entries(called).map(([word, found]) => [word, [...found]]))
process.stdout.write(JSON.stringify({ called: names, refused }))
process.exit(0)
