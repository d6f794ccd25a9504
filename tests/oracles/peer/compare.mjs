// Loads a GGUF in llama.cpp and prints its greedy continuation of each prompt as JSON lines:
//   node compare.mjs MODEL.gguf N_TOKENS '[[ids of prompt 0], [ids of prompt 1], ...]'
// Prompts are token ids, so that only the model is compared.
import {getLlama, LlamaLogLevel} from "node-llama-cpp";

const [file, count, prompts] = process.argv.slice(2);
const llama = await getLlama({gpu: false, build: "never", logLevel: LlamaLogLevel.error});
const model = await llama.loadModel({modelPath: file, gpuLayers: 0});
const context = await model.createContext({contextSize: 2048});
for (const ids of JSON.parse(prompts)) {
  const sequence = context.getSequence();
  const out = [];
  for await (const token of sequence.evaluate(ids, {temperature: 0})) {
    out.push(token);
    if (out.length >= Number(count) || model.isEogToken(token)) break;
  }
  console.log(JSON.stringify({ids: out, text: model.detokenize(out, true)}));
  sequence.dispose();
}
process.exit(0);
