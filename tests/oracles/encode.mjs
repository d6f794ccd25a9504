// Ids that an independent implementation gives.
//   node encode.mjs TOKENIZER TEXTS.json IDS.json
// TOKENIZER is gemma3, deepseek_v3 or the path of a tokenizer.json; TEXTS.json holds a list of strings.
// Added tokens are matched in the texts; nothing is put before or after them.
import { readFileSync, writeFileSync } from "node:fs";
import { TokenizerLoader } from "@lenml/tokenizers";

const [name, textsPath, idsPath] = process.argv.slice(2);
if (!idsPath) {
  console.error("usage: node encode.mjs TOKENIZER TEXTS.json IDS.json");
  process.exit(2);
}

const packaged = (file) => new URL(`node_modules/@lenml/tokenizer-${name}/models/${file}`, import.meta.url);
const path = name.endsWith(".json") ? name : packaged("tokenizer.json");
const tokenizerJSON = JSON.parse(readFileSync(path, "utf8"));
const tokenizerConfig = { tokenizer_class: "PreTrainedTokenizerFast", clean_up_tokenization_spaces: false };
const tokenizer = TokenizerLoader.fromPreTrained({ tokenizerJSON, tokenizerConfig });

const texts = JSON.parse(readFileSync(textsPath, "utf8"));
const encode = (text) => tokenizer.encode(text, { add_special_tokens: false });
writeFileSync(idsPath, JSON.stringify(texts.map(encode)));
