#include "server/chat.h"

#include <algorithm>

namespace synod::server {

void check_function_name(const std::string& name, const std::string& path) {
  const bool is_plain = std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
  });
  if (name.empty() || name.size() > 128 || !is_plain) {
    bad_field(path, "expected 1 to 128 letters, digits, \"_\", \"-\" or \".\", got {}", shown(Json(name)));
  }
}

Tool read_function(const Fields& function, std::string_view schema_key, ChatRequest& out) {
  Tool tool;
  tool.name = function.require_text("name");
  check_function_name(tool.name, function.path("name"));
  tool.description = function.text("description").value_or("");
  if (const auto schema = function.object(schema_key)) tool.parameters = dump(schema->json());
  if (function.boolean("strict").value_or(false)) out.is_strict = true;
  return tool;
}

namespace {

std::string named_choice(const Fields& choice, bool is_flat) {
  if (is_flat) return choice.require_text("name");
  const auto function = choice.object("function");
  if (!function) bad_field(choice.path("function"), "expected {{\"name\": ...}}, got none");
  return function->require_text("name");
}

// {"type": "allowed_tools", "mode": "auto" | "required", "tools": [...]}: the others are not shown.
void apply_allowed_tools(const Fields& choice, bool is_flat, ChatRequest& out) {
  const auto nested = is_flat ? std::optional<Fields>(choice) : choice.object("allowed_tools");
  if (!nested) bad_field(choice.path("allowed_tools"), "expected an object, got none");
  const auto mode = nested->one_of("mode", {"auto", "required"});
  out.dialogue.tool_choice = mode == "required" ? ToolChoice::kRequired : ToolChoice::kAuto;
  const Json& allowed = nested->require_array("tools", kMaxTools);
  std::vector<std::string> names;
  for (size_t i = 0; i < allowed.size(); ++i) {
    names.push_back(named_choice(Fields(allowed[i], nested->path("tools", i)), is_flat));
  }
  std::erase_if(out.dialogue.tools, [&](const Tool& tool) {
    return std::find(names.begin(), names.end(), tool.name) == names.end();
  });
}

void read_tool_choice(const Fields& fields, bool is_flat, ChatRequest& out) {
  const Json* choice = fields.find("tool_choice");
  if (choice == nullptr) return;
  DialogueOptions& d = out.dialogue;
  if (choice->is_string()) {
    const auto word = fields.one_of("tool_choice", {"auto", "none", "required", "any"});
    d.tool_choice = *word == "auto"   ? ToolChoice::kAuto
                    : *word == "none" ? ToolChoice::kNone
                                      : ToolChoice::kRequired;
    return;
  }
  const Fields object(*choice, fields.path("tool_choice"));
  const auto type = object.one_of("type", {"function", "allowed_tools", "auto", "none", "required"});
  if (!type) bad_field(object.path("type"), "expected \"function\", got none");
  if (*type == "function") {
    d.tool_choice = ToolChoice::kNamed;
    d.tool_choice_name = named_choice(object, is_flat);
  } else if (*type == "allowed_tools") {
    apply_allowed_tools(object, is_flat, out);
  } else {
    d.tool_choice = *type == "auto"   ? ToolChoice::kAuto
                    : *type == "none" ? ToolChoice::kNone
                                      : ToolChoice::kRequired;
  }
}

}  // namespace

void read_tools(const Fields& fields, bool is_flat, ChatRequest& out) {
  if (const Json* tools = fields.array("tools", kMaxTools)) {
    for (size_t i = 0; i < tools->size(); ++i) {
      const Fields tool((*tools)[i], fields.path("tools", i));
      const auto type = tool.text("type").value_or("function");
      if (type != "function") {
        bad_field(tool.path("type"), "only tools of type function are supported, got {}", shown(Json(type)));
      }
      if (is_flat) {
        out.dialogue.tools.push_back(read_function(tool, "parameters", out));
      } else {
        const auto function = tool.object("function");
        if (!function)
          bad_field(tool.path("function"), "expected an object with name and parameters, got none");
        out.dialogue.tools.push_back(read_function(*function, "parameters", out));
      }
    }
  }
  read_tool_choice(fields, is_flat, out);
  out.is_parallel = fields.boolean("parallel_tool_calls").value_or(true);
  check_tools(out, fields.path("tool_choice"));
}

void check_tools(const ChatRequest& request, const std::string& choice_path) {
  const DialogueOptions& d = request.dialogue;
  for (size_t i = 0; i < d.tools.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (d.tools[i].name == d.tools[j].name) {
        bad_field(fmt::format("tools[{}]", i), "a second tool named \"{}\"; names must differ",
                  d.tools[i].name);
      }
    }
  }
  if (d.tool_choice == ToolChoice::kRequired && d.tools.empty()) {
    bad_field(choice_path, "a call is required, but there are no tools");
  }
  if (d.tool_choice != ToolChoice::kNamed) return;
  const bool is_known = std::any_of(d.tools.begin(), d.tools.end(),
                                    [&](const Tool& tool) { return tool.name == d.tool_choice_name; });
  if (!is_known) bad_field(choice_path, "no tool is named {}", shown(Json(d.tool_choice_name)));
}

void read_content(const Json& content, const std::string& path, ChatMessage& out) {
  if (content.is_string()) {
    out.content = content.get<std::string>();
    return;
  }
  if (!content.is_array()) bad_field(path, "expected a string or an array of parts, got {}", shown(content));
  for (size_t i = 0; i < content.size(); ++i) {
    const std::string where = fmt::format("{}[{}]", path, i);
    if (content[i].is_string()) {
      out.parts.push_back({"text", content[i].get<std::string>()});
      continue;
    }
    const Fields part(content[i], where);
    const std::string type = part.text("type").value_or("text");
    if (type == "refusal") {
      out.parts.push_back({"text", part.require_text("refusal")});
    } else if (type == "text" || type == "input_text" || type == "output_text") {
      out.parts.push_back({"text", part.require_text("text")});
    } else {
      bad_field(part.path("type"), "this model takes text only, got a part of type {}", shown(Json(type)));
    }
  }
}

std::string content_text(const Json& content, const std::string& path) {
  ChatMessage message;
  read_content(content, path, message);
  return message.parts.empty() ? message.content : text_of(message);
}

}  // namespace synod::server
