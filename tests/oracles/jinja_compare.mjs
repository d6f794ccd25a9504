// Renders the templates of ../data/jinja/cases.json with @huggingface/jinja and lists where it differs from the
// stored results of python3-jinja2. Differences are for reading: where the two disagree, Python is the reference.
import { readFileSync } from "node:fs";
import { Template } from "@huggingface/jinja";

const data = JSON.parse(readFileSync(new URL("../data/jinja/cases.json", import.meta.url), "utf8"));
let same = 0;
const differ = [];
for (const [text, variables, expected] of data.cases) {
  let got = null;
  try {
    got = new Template(text).render(structuredClone(data[variables]));
  } catch {
    // stays null: must fail
  }
  if (got === expected) same += 1;
  else differ.push([text, expected, got]);
}
for (const [text, expected, got] of differ) {
  console.log(JSON.stringify(text), "\n  python", JSON.stringify(expected), "\n  js    ", JSON.stringify(got));
}
console.log(`${same} of ${data.cases.length} equal, ${differ.length} differ`);
