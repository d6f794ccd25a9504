import assert from 'node:assert/strict';
import test from 'node:test';
import { Ollama } from 'ollama';
import { key, markup, model, personSchema, url, weather, weatherQuestion, weatherResult } from './common.mjs';

const client = new Ollama({ host: url, headers: { Authorization: `Bearer ${key}` } });
const messages = [{ role: 'user', content: 'Define hope.' }];
const options = { temperature: 0, num_predict: 40 };
const tools = [{ type: 'function', function: weather }];

test('chat, whole and streamed', async () => {
  const reply = await client.chat({ model, messages, options });
  assert.ok(reply.message.content.length > 5);
  assert.equal(reply.done, true);
  assert.ok(reply.eval_count > 0 && reply.prompt_eval_count > 0 && reply.total_duration > 0);
  let text = '';
  let last = null;
  for await (const part of await client.chat({ model, messages, options, stream: true })) {
    text += part.message.content;
    last = part;
  }
  assert.equal(text, reply.message.content);
  assert.equal(last.done, true);
  assert.equal(last.eval_count, reply.eval_count);
});

test('generate', async () => {
  const reply = await client.generate({ model, prompt: 'Define hope.', options });
  assert.ok(reply.response.length > 5);
  const raw = await client.generate({ model, prompt: 'In the beginning', raw: true, options });
  assert.ok(raw.response.length > 0);
});

test('tools', async () => {
  const ask = [{ role: 'user', content: weatherQuestion }];
  const reply = await client.chat({ model, messages: ask, tools, options: { temperature: 0, num_predict: 100 } });
  const call = reply.message.tool_calls[0];
  assert.equal(call.function.name, 'get_weather');
  assert.match(call.function.arguments.city, /Oslo/);
  const answer = await client.chat({
    model, tools, options,
    messages: [...ask, reply.message, { role: 'tool', tool_name: 'get_weather', content: JSON.stringify(weatherResult) }] });
  assert.ok(answer.message.content.length > 0);
  let calls = 0;
  for await (const part of await client.chat({ model, messages: ask, tools, options: { temperature: 0, num_predict: 100 }, stream: true })) {
    calls += part.message.tool_calls?.length ?? 0;
  }
  assert.equal(calls, 1);
});

test('a schema is followed', async () => {
  const reply = await client.chat({ model, messages, format: personSchema, options: { temperature: 0, num_predict: 200 } });
  assert.ok(Number.isInteger(JSON.parse(reply.message.content).age));
});

test('thinking', async () => {
  const reply = await client.chat({ model, messages, think: true, options: { temperature: 0, num_predict: 200 } });
  assert.ok(reply.message.thinking.length > 0);
  assert.doesNotMatch(reply.message.thinking + reply.message.content, markup);
});

test('list, show, ps, version, errors', async () => {
  assert.equal((await client.list()).models[0].name, model);
  assert.ok((await client.show({ model })).capabilities.includes('completion'));
  assert.equal((await client.ps()).models[0].model, model);
  assert.ok((await client.version()).version.length > 0);
  await assert.rejects(client.chat({ model: 'nope', messages }), /does not exist/);
});

test('abort', async () => {
  const stream = await client.chat({ model, messages, options: { temperature: 0, num_predict: 3000 }, stream: true });
  await assert.rejects(async () => {
    for await (const part of stream) if (part) stream.abort();
  }, (e) => e.name === 'AbortError' || /abort/i.test(e.message));
});
