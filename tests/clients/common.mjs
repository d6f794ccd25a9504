// What all client tests share. The model is asked with temperature 0, so answers repeat.
export const url = process.env.SYNOD_URL;
export const model = process.env.SYNOD_MODEL_ID;
export const key = 'test-key';

export const weather = {
  name: 'get_weather',
  description: 'Get the current weather of a city.',
  parameters: {
    type: 'object',
    properties: { city: { type: 'string', description: 'The city.' } },
    required: ['city'],
    additionalProperties: false,
  },
};
export const weatherQuestion = 'What is the weather in Oslo?';
export const weatherResult = { temperature: 7, condition: 'cloudy' };

export const personSchema = {
  type: 'object',
  properties: { name: { type: 'string', maxLength: 20 }, age: { type: 'integer', minimum: 0, maximum: 150 } },
  required: ['name', 'age'],
  additionalProperties: false,
};

// No part of either family's markup may reach a client.
export const markup = /<\|?(turn|channel|tool|think|bos|eos|end|begin|User|Assistant)|<｜|｜>|<\/?think>|DSML/;
