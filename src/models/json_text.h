// JSON that clients sent as text inside messages and tools.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace synod {

// A JSON object, key order kept, nested at most 128 deep; `what` names it in the message of kUsage otherwise.
nlohmann::ordered_json parse_object(std::string_view text, const std::string& what);
// Python's json.dumps(value, ensure_ascii=False): ", " and ": " between, numbers as Python prints them.
std::string python_json(const nlohmann::ordered_json& value);

struct Tool;
// {"type": "function", "function": {"name", "description", "parameters"}}. Throws kUsage for bad parameters.
nlohmann::ordered_json tool_object(const Tool& tool);

}  // namespace synod
