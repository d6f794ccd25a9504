import assert from 'node:assert/strict';
import test from 'node:test';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { generateObject, generateText, jsonSchema, stepCountIs, streamText, tool } from 'ai';
import { ChatOpenAI } from '@langchain/openai';
import { tool as langchainTool } from '@langchain/core/tools';
import { createAgent } from 'langchain';
import { z } from 'zod';
import { key, markup, model, personSchema, url, weather, weatherQuestion, weatherResult } from './common.mjs';

const provider = createOpenAICompatible({
  name: 'synod', baseURL: `${url}/v1`, apiKey: key, includeUsage: true, supportsStructuredOutputs: true });

test('ai: text, stream, usage', async () => {
  const request = { model: provider(model), prompt: 'Define hope.', temperature: 0, maxOutputTokens: 40, maxRetries: 0 };
  const whole = await generateText(request);
  assert.ok(whole.text.length > 5);
  const stream = streamText(request);
  let text = '';
  for await (const part of stream.textStream) text += part;
  assert.equal(text, whole.text);
  assert.equal((await stream.usage).outputTokens, whole.usage.outputTokens);
});

test('ai: a tool loop', async () => {
  let asked = '';
  const result = await generateText({
    model: provider(model), prompt: weatherQuestion, temperature: 0, maxOutputTokens: 100, maxRetries: 0,
    stopWhen: stepCountIs(2),
    tools: {
      get_weather: tool({
        description: weather.description, inputSchema: jsonSchema(weather.parameters),
        execute: async ({ city }) => {
          asked = city;
          return weatherResult;
        },
      }),
    },
  });
  assert.match(asked, /Oslo/);
  assert.equal(result.steps.length, 2);
});

test('ai: objects and reasoning', async () => {
  const { object } = await generateObject({
    model: provider(model), prompt: 'Describe a person.', temperature: 0, maxOutputTokens: 200, maxRetries: 0,
    schema: jsonSchema(personSchema) });
  assert.ok(Number.isInteger(object.age));
  const reasoned = await generateText({
    model: provider(model), prompt: 'Define hope.', temperature: 0, maxOutputTokens: 200, maxRetries: 0,
    providerOptions: { synod: { reasoningEffort: 'high' } } });
  assert.ok(reasoned.reasoningText.length > 0);
  assert.doesNotMatch(reasoned.text, markup);
});

test('ai: errors and abort', async () => {
  await assert.rejects(generateText({ model: provider('nope'), prompt: 'x', maxRetries: 0 }), (e) => e.statusCode === 404);
  const abort = new AbortController();
  const stream = streamText({
    model: provider(model), prompt: 'Define hope.', temperature: 0, maxOutputTokens: 3000, maxRetries: 0,
    abortSignal: abort.signal, onError: () => {} });
  for await (const part of stream.fullStream) {
    if (part.type === 'text-delta') abort.abort();
  }
});

const chat = (options = {}) => new ChatOpenAI({
  model, temperature: 0, maxTokens: 100, maxRetries: 0, apiKey: key, configuration: { baseURL: `${url}/v1` }, ...options });

test('langchain: invoke and stream', async () => {
  const whole = await chat({ maxTokens: 40 }).invoke('Define hope.');
  assert.ok(whole.content.length > 5);
  let text = '';
  let usage = null;
  for await (const chunk of await chat({ maxTokens: 40 }).stream('Define hope.')) {
    text += chunk.content;
    usage = chunk.usage_metadata ?? usage;
  }
  assert.equal(text, whole.content);
  assert.ok(usage.output_tokens > 0);
});

test('langchain: structured output', async () => {
  const shape = z.object({ yes: z.boolean() });
  const result = await chat().withStructuredOutput(shape, { method: 'jsonSchema' }).invoke('Define hope.');
  assert.equal(typeof result.yes, 'boolean');
});

test('langchain: an agent calls the tool', async () => {
  let asked = '';
  const getWeather = langchainTool(async ({ city }) => {
    asked = city;
    return JSON.stringify(weatherResult);
  }, { name: weather.name, description: weather.description, schema: z.object({ city: z.string().describe('The city.') }) });
  const agent = createAgent({ model: chat(), tools: [getWeather] });
  const result = await agent.invoke({ messages: [{ role: 'user', content: weatherQuestion }] }, { recursionLimit: 8 });
  assert.match(asked, /Oslo/);
  assert.ok(result.messages.at(-1).content.length > 0);
});

test('langchain: errors and abort', async () => {
  await assert.rejects(chat({ model: 'nope' }).invoke('x'), (e) => e.status === 404);
  await assert.rejects(chat({ temperature: 9 }).invoke('x'), (e) => e.status === 400 && e.param === 'temperature');
  const abort = new AbortController();
  let pieces = 0;
  await assert.rejects(async () => {
    const stream = await chat({ maxTokens: 3000, modelKwargs: { ignore_eos: true } }).stream(
      'Define hope.', { signal: abort.signal });
    for await (const chunk of stream) {
      if (chunk.content && ++pieces === 3) abort.abort();
    }
  }, (e) => /abort/i.test(e.name + e.message));
  assert.equal(pieces, 3);
});
