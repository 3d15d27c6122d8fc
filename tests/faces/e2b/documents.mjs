// Programs with the calls that the documents of E2B's SDKs for JavaScript show; prints what they saw as JSON.
import { createRequire } from 'node:module'
import { pathToFileURL } from 'node:url'

const require = createRequire(pathToFileURL(process.env.E2B_MODULES + '/'))
const { E2B } = require('e2b')
const { Sandbox } = require('@e2b/code-interpreter')
const seen = {}

const box = await Sandbox.create({ timeoutMs: 60_000, metadata: { user: '7' } })
seen.hello = (await box.commands.run('echo "Hello from a sandbox"')).stdout
await box.runCode('count = 1')
seen.counted = (await box.runCode('count += 1; count')).text
const told = []
await box.runCode("import sys; print('out'); print('err', file=sys.stderr); display(1); 1 / 0", {
  onStdout: (message) => told.push(message.line),
  onStderr: (message) => told.push(message.line),
  onResult: (result) => told.push(result.text),
  onError: (error) => told.push(error.name),
})
// A line may come in pieces.
seen.told = told.map((one) => one.trim()).filter(Boolean).sort()
await box.files.write('/home/user/sales.csv', 'day,sold\n1,2\n2,5\n')
seen.sum = (await box.runCode("import csv; sum(int(row['sold']) for row in csv.DictReader(open('/home/user/sales.csv')))")).text
seen.user = (await (await Sandbox.connect(box.sandboxId)).getInfo()).metadata.user

const client = new E2B({ apiKey: process.env.E2B_API_KEY, apiUrl: process.env.E2B_API_URL, sandboxUrl: process.env.E2B_SANDBOX_URL })
const bound = await client.Sandbox.create({ timeoutMs: 60_000 })
seen.bound = (await bound.commands.run('echo bound')).stdout
const { Sandbox: Bound } = client
seen.found = (await Bound.list().nextItems()).some((each) => each.sandboxId === bound.sandboxId)
seen.stranger = await client.Sandbox.create({ apiKey: 'another' }).catch((error) => error.constructor.name)
await bound.kill()
await box.kill()
process.stdout.write(JSON.stringify(seen))
process.exit(0)
