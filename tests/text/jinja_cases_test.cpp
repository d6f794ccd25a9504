// Every construct chat templates use, against results of python3-jinja2 (tests/oracles/jinja_cases.py).
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/buffer.h"
#include "base/error.h"
#include "text/jinja/template.h"

namespace synod::jinja {
namespace {

using json = nlohmann::ordered_json;

TEST(JinjaCases, EqualPythonsResults) {
  setenv("TZ", "UTC", 1);
  const json data = json::parse(read_text_file(SYNOD_SOURCE_DIR "/tests/data/jinja/cases.json"));
  int failing = 0;
  for (const json& entry : data.at("cases")) {
    const std::string source = entry[0].get<std::string>();
    std::optional<std::string> result;
    std::string message;
    try {
      std::vector<Variable> variables;
      for (const auto& [name, value] : data.at(entry[1].get<std::string>()).items()) {
        variables.push_back({name, from_json(value, Origin::kForeign)});
      }
      Template compiled(source);
      compiled.set_clock([&] { return data.at("now").get<int64_t>(); });
      result = compiled.render(variables).bytes();
    } catch (const Error& error) {
      message = error.what();
    }
    if (entry[2].is_null()) {
      ++failing;
      EXPECT_FALSE(result.has_value()) << source << "\n  must fail, gave " << *result;
    } else {
      EXPECT_EQ(result.value_or("error: " + message), entry[2].get<std::string>()) << source;
    }
  }
  std::printf("%zu templates, %d of which must fail\n", data.at("cases").size(), failing);
  EXPECT_GT(data.at("cases").size(), 200U);
}

}  // namespace
}  // namespace synod::jinja
