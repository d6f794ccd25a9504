// Measures llama.cpp (npm package node-llama-cpp) on a GGUF file and prints one JSON object.
//   node peer.mjs MODEL.gguf PROMPT DECODE DEPTH THREADS
// PROMPT tokens of prefill and DECODE tokens of decode, each after DEPTH tokens. Ids are pseudo-random, as in
// `synod bench`; every decode step computes logits and takes the arg-max.
import {getLlama, LlamaLogLevel} from "node-llama-cpp";

const [file, prompt, decode, depth, threads] = process.argv.slice(2).map((a, i) => (i === 0 ? a : Number(a)));
const llama = await getLlama({gpu: false, build: "never", logLevel: LlamaLogLevel.error, maxThreads: threads});
const model = await llama.loadModel({modelPath: file, gpuLayers: 0, useMmap: true});
const vocabulary = model.fileInfo.metadata.tokenizer.ggml.tokens.length;
const context = await model.createContext({
  contextSize: depth + prompt + decode + 256, batchSize: 512, threads, sequences: 1, flashAttention: "auto"
});

let state = 1n;
function randomIds(n) {
  const ids = [];
  for (let i = 0; i < n; ++i) {
    state = (state * 6364136223846793005n + 1442695040888963407n) & 0xffffffffffffffffn;
    ids.push(Number((state >> 33n) % BigInt(vocabulary)));
  }
  return ids;
}

// Evaluates ids with the logits of the last one.
async function step(sequence, ids) {
  const iterator = sequence.evaluate(ids, {temperature: 0});
  await iterator.next();
  await iterator.return?.();
}

const result = {build: llama.buildType};
const sequence = context.getSequence();
await step(sequence, randomIds(8));  // warm-up
async function fill() {
  await sequence.clearHistory();
  if (depth > 0) await sequence.evaluateWithoutGeneratingNewTokens(randomIds(depth));
}
if (prompt > 0) {
  await fill();
  const ids = randomIds(prompt);
  const start = performance.now();
  await step(sequence, ids);
  result.prefill = (prompt * 1000) / (performance.now() - start);
}
if (decode > 0) {
  await fill();
  await step(sequence, randomIds(1));
  const start = performance.now();
  for (let i = 0; i < decode; ++i) await step(sequence, randomIds(1));
  result.decode = (decode * 1000) / (performance.now() - start);
}
console.log(JSON.stringify(result));
process.exit(0);
