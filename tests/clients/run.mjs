// Starts a server on a free port, runs every *.test.mjs against it, and ends it with SIGTERM, which must drain.
import { spawn, spawnSync } from 'node:child_process';
import { readdirSync } from 'node:fs';
import { createInterface } from 'node:readline';

const [program, model, ...only] = process.argv.slice(2);
const server = spawn(program, ['serve', model, '--port', '0', '--json', '--api-key', 'test-key', '-c', '4096',
                               '--parallel', '8', '--quiet'], { stdio: ['ignore', 'pipe', 'inherit'] });
const ended = new Promise((resolve) => server.on('exit', (code) => resolve(code)));
const line = await new Promise((resolve, reject) => {
  createInterface(server.stdout).once('line', resolve);
  ended.then((code) => reject(new Error(`the server ended with ${code}`)));
});
const { url, model: id } = JSON.parse(line);
const files = readdirSync('.').filter((f) => f.endsWith('.test.mjs') && (!only.length || only.includes(f)));
const tests = spawnSync(process.execPath, ['--test', '--test-reporter', 'spec', '--test-concurrency', '1', ...files], {
  stdio: 'inherit',
  env: { ...process.env, SYNOD_URL: url, SYNOD_MODEL_ID: id },
  timeout: 240_000,
});
server.kill('SIGTERM');
const code = await ended;
if (code !== 143) console.error(`the server ended with ${code} after SIGTERM, expected 143`);
process.exit(tests.status === 0 && code === 143 ? 0 : 1);
