import assert from 'node:assert/strict';
import test from 'node:test';
import Anthropic from '@anthropic-ai/sdk';
import { key, markup, model, url, weather, weatherQuestion, weatherResult } from './common.mjs';

const client = new Anthropic({ baseURL: url, apiKey: key, maxRetries: 0 });
const messages = [{ role: 'user', content: 'Define hope.' }];
const tools = [{ name: weather.name, description: weather.description, input_schema: weather.parameters }];

test('a message', async () => {
  const reply = await client.messages.create({ model, max_tokens: 40, messages, temperature: 0, system: 'Be brief.' });
  assert.equal(reply.type, 'message');
  assert.equal(reply.content[0].type, 'text');
  assert.ok(reply.content[0].text.length > 5);
  assert.ok(['end_turn', 'max_tokens'].includes(reply.stop_reason));
  assert.ok(reply.usage.input_tokens > 0 && reply.usage.output_tokens > 0);
});

test('a stream gives the same message', async () => {
  const request = { model, max_tokens: 40, messages, temperature: 0 };
  const whole = await client.messages.create(request);
  const streamed = await client.messages.stream(request).finalMessage();
  assert.deepEqual(streamed.content.map((b) => b.text), whole.content.map((b) => b.text));
  assert.equal(streamed.stop_reason, whole.stop_reason);
  assert.equal(streamed.usage.output_tokens, whole.usage.output_tokens);
});

test('tokens are counted as the reply counts them', async () => {
  const { input_tokens } = await client.messages.countTokens({ model, messages, tools });
  const reply = await client.messages.create({ model, max_tokens: 1, messages, tools });
  assert.equal(input_tokens, reply.usage.input_tokens + reply.usage.cache_read_input_tokens);
});

test('tools: call, result, answer, whole and streamed', async () => {
  const ask = [{ role: 'user', content: weatherQuestion }];
  const request = { model, max_tokens: 100, messages: ask, tools, temperature: 0 };
  const reply = await client.messages.create(request);
  assert.equal(reply.stop_reason, 'tool_use');
  const use = reply.content.find((b) => b.type === 'tool_use');
  assert.equal(use.name, 'get_weather');
  assert.match(use.input.city, /Oslo/);
  const streamed = await client.messages.stream(request).finalMessage();
  assert.deepEqual(streamed.content.find((b) => b.type === 'tool_use').input, use.input);
  const answer = await client.messages.create({
    ...request, max_tokens: 60,
    messages: [...ask, { role: 'assistant', content: reply.content },
               { role: 'user', content: [{ type: 'tool_result', tool_use_id: use.id, content: JSON.stringify(weatherResult) }] }] });
  assert.ok(answer.content[0].text.length > 0);
  assert.doesNotMatch(answer.content[0].text, markup);
});

test('thinking comes as its own block', async () => {
  const reply = await client.messages.create({
    model, max_tokens: 200, messages, temperature: 0, thinking: { type: 'enabled', budget_tokens: 1024 } });
  const thinking = reply.content.find((b) => b.type === 'thinking');
  assert.ok(thinking.thinking.length > 0);
  assert.doesNotMatch(thinking.thinking, markup);
  assert.equal(typeof thinking.signature, 'string');
});

test('stop sequences are named', async () => {
  const plain = await client.messages.create({ model, max_tokens: 30, messages, temperature: 0 });
  const word = plain.content[0].text.trim().split(/\s+/)[2];
  const reply = await client.messages.create({ model, max_tokens: 30, messages, temperature: 0, stop_sequences: [word] });
  assert.equal(reply.stop_reason, 'stop_sequence');
  assert.equal(reply.stop_sequence, word);
});

test('errors', async () => {
  await assert.rejects(client.messages.create({ model: 'nope', max_tokens: 5, messages }), Anthropic.NotFoundError);
  await assert.rejects(client.messages.create({ model, max_tokens: 0, messages }),
                       (e) => e instanceof Anthropic.BadRequestError && /max_tokens/.test(e.message));
  await assert.rejects(new Anthropic({ baseURL: url, apiKey: 'wrong', maxRetries: 0 }).messages.create({ model, max_tokens: 5, messages }),
                       Anthropic.AuthenticationError);
});

test('abort', async () => {
  const stream = client.messages.stream({ model, max_tokens: 3000, messages, temperature: 0 });
  stream.on('text', () => stream.abort());
  await assert.rejects(stream.finalMessage(), Anthropic.APIUserAbortError);
});
