// Any bytes give a template or synod::Error; an accepted template renders or fails within its limits, and
// what came in variables is never markup.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/error.h"
#include "text/jinja/template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace synod::jinja;
  // A byte that no template text below can contain unless it came from the variables.
  static const nlohmann::ordered_json kVariables = nlohmann::ordered_json::parse(
      R"({"messages":[{"role":"user","content":"@a @"},{"role":"assistant","content":null,"tool_calls":[{"function":)"
      R"({"name":"@f","arguments":{"@k":[1,2.5,true,null,"@v"]}}}]}],"tools":[{"function":{"name":"@t"}}],)"
      R"("xs":[3,1,2],"s":"@s","d":{"@b":2,"a":{}},"add_generation_prompt":true})");
  const std::string_view source(reinterpret_cast<const char*>(data), size);
  try {
    const Limits limits{.max_steps = 20'000, .max_output_bytes = 1 << 16, .max_source_bytes = 1 << 16};
    const Template compiled(source, "fuzz", {}, limits);
    std::vector<Variable> variables;
    for (const auto& [name, value] : kVariables.items())
      variables.push_back({name, from_json(value, Origin::kForeign)});
    const Text text = compiled.render(variables);
    if (text.size() > limits.max_output_bytes) __builtin_trap();
    size_t begin = 0;
    for (const Text::Run& run : text.runs()) {
      if (run.end <= begin) __builtin_trap();
      const std::string_view part = text.view().substr(begin, run.end - begin);
      // "@" may also be the template's own.
      if (run.origin == Origin::kMarkup && part.find('@') != std::string_view::npos &&
          source.find('@') == std::string_view::npos && source.find('\\') == std::string_view::npos) {
        __builtin_trap();
      }
      begin = run.end;
    }
    if (begin != text.size()) __builtin_trap();
  } catch (const synod::Error&) {
  }
  return 0;
}
