#include "text/grammar/schema_tree.h"

#include <simdjson.h>

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "base/error.h"
#include "text/grammar/json_terms.h"

namespace synod {

using Id = SchemaTree::Id;
using Type = SchemaTree::Type;

struct SchemaReader {
  SchemaTree& tree;

  // As deep as the parser allows, which is bounded.
  Id read(simdjson::dom::element element, Id parent, uint32_t index) {
    const auto id = Id(tree.nodes_.size());
    tree.nodes_.emplace_back();
    tree.nodes_[id].parent = parent;
    tree.nodes_[id].index = index;
    using Kind = simdjson::dom::element_type;
    switch (element.type()) {
      case Kind::NULL_VALUE:
        break;
      case Kind::BOOL:
        tree.nodes_[id].type = Type::kBoolean;
        tree.nodes_[id].boolean = bool(element);
        break;
      case Kind::INT64:
        tree.nodes_[id].type = Type::kInteger;
        tree.nodes_[id].integer = int64_t(element);
        tree.nodes_[id].number = double(int64_t(element));
        break;
      case Kind::UINT64:
        tree.nodes_[id].type = Type::kUnsigned;
        tree.nodes_[id].unsigned_value = uint64_t(element);
        tree.nodes_[id].number = double(uint64_t(element));
        break;
      case Kind::DOUBLE:
        tree.nodes_[id].type = Type::kDouble;
        tree.nodes_[id].number = double(element);
        break;
      case Kind::STRING:
        tree.nodes_[id].type = Type::kString;
        tree.nodes_[id].text = std::string_view(element);
        break;
      case Kind::ARRAY: {
        tree.nodes_[id].type = Type::kArray;
        uint32_t i = 0;
        for (const simdjson::dom::element item : simdjson::dom::array(element)) {
          const Id child = read(item, id, i++);
          tree.nodes_[id].items.push_back(child);
        }
        break;
      }
      case Kind::OBJECT: {
        tree.nodes_[id].type = Type::kObject;
        uint32_t i = 0;
        std::unordered_set<std::string_view> seen;
        for (const auto& field : simdjson::dom::object(element)) {
          if (!seen.insert(field.key).second) {
            tree.complain(id, fmt::format("the key '{}' is given twice", field.key));
          }
          tree.nodes_[id].keys.emplace_back(field.key);
          const Id child = read(field.value, id, i++);
          tree.nodes_[id].items.push_back(child);
        }
        break;
      }
    }
    return id;
  }
};

SchemaTree::SchemaTree(std::string_view json, int max_depth) {
  simdjson::dom::parser parser;
  if (parser.allocate(json.size() + 1, size_t(max_depth) + 1) != simdjson::SUCCESS) {
    fail(Error::Kind::kNoMemory, "schema: no memory for {} bytes", json.size());
  }
  simdjson::dom::element root;
  const simdjson::padded_string padded(json);
  const simdjson::error_code code = parser.parse(padded).get(root);
  if (code == simdjson::DEPTH_ERROR) {
    fail(Error::Kind::kUsage, "schema: nested deeper than {}", max_depth);
  }
  if (code != simdjson::SUCCESS) {
    fail(Error::Kind::kUsage, "schema: not valid JSON: {}", simdjson::error_message(code));
  }
  SchemaReader{*this}.read(root, kNone, 0);
}

Id SchemaTree::member(Id object, std::string_view key) const {
  const Node& node = nodes_[object];
  if (node.type != Type::kObject) return kNone;
  for (size_t i = 0; i < node.keys.size(); ++i) {
    if (node.keys[i] == key) return node.items[i];
  }
  return kNone;
}

std::string SchemaTree::pointer(Id id) const {
  std::vector<std::string> parts;
  while (nodes_[id].parent != kNone) {
    const Node& parent = nodes_[nodes_[id].parent];
    std::string part;
    if (parent.type == Type::kObject) {
      for (const char c : parent.keys[nodes_[id].index]) {
        part += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
      }
    } else {
      part = std::to_string(nodes_[id].index);
    }
    parts.push_back(std::move(part));
    id = nodes_[id].parent;
  }
  std::string out = "#";
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) out += "/" + *part;
  constexpr size_t kMaxShown = 300;
  if (out.size() > kMaxShown) out = out.substr(0, kMaxShown) + "...";
  return out;
}

void SchemaTree::complain(Id id, std::string_view what) const {
  fail(Error::Kind::kUsage, "schema: {}: {}", pointer(id), what);
}

Id SchemaTree::resolve(Id reference) const {
  const Node& node = nodes_[reference];
  if (node.type != Type::kString) complain(reference, "expected a string");
  const std::string& text = node.text;
  if (text.empty() || text[0] != '#') {
    complain(reference, fmt::format("only references within the schema ('#/...') are supported, got '{}'",
                                    text.substr(0, 100)));
  }
  Id at = 0;
  if (text.size() > 1 && text[1] != '/') {
    // #name: an anchor somewhere.
    for (Id id = 0; id < nodes_.size(); ++id) {
      const Id anchor = member(id, "$anchor");
      if (anchor != kNone && nodes_[anchor].text == text.substr(1)) return id;
    }
    complain(reference, fmt::format("no schema has the anchor '{}'", text.substr(1, 100)));
  }
  const auto hex = [](char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
  };
  for (size_t pos = 1; pos < text.size();) {
    ++pos;  // '/'
    std::string part;
    while (pos < text.size() && text[pos] != '/') {
      if (text[pos] == '%' && pos + 2 < text.size() && hex(text[pos + 1]) >= 0 && hex(text[pos + 2]) >= 0) {
        part.push_back(char(hex(text[pos + 1]) * 16 + hex(text[pos + 2])));
        pos += 3;
      } else {
        part.push_back(text[pos++]);
      }
    }
    std::string key;
    for (size_t i = 0; i < part.size(); ++i) {
      if (part[i] == '~' && i + 1 < part.size() && (part[i + 1] == '0' || part[i + 1] == '1')) {
        key.push_back(part[++i] == '0' ? '~' : '/');
      } else {
        key.push_back(part[i]);
      }
    }
    Id next = member(at, key);
    if (nodes_[at].type == Type::kArray && !key.empty() && key.size() < 9 &&
        std::all_of(key.begin(), key.end(), [](char c) { return c >= '0' && c <= '9'; })) {
      const auto i = size_t(std::stoul(key));
      if (i < nodes_[at].items.size()) next = nodes_[at].items[i];
    }
    if (next == kNone) {
      complain(reference, fmt::format("the reference '{}' leads nowhere", text.substr(0, 100)));
    }
    at = next;
  }
  return at;
}

std::string SchemaTree::compact(Id id) const {
  const Node& node = nodes_[id];
  std::string out;
  switch (node.type) {
    case Type::kNull:
      return "null";
    case Type::kBoolean:
      return node.boolean ? "true" : "false";
    case Type::kInteger:
      return std::to_string(node.integer);
    case Type::kUnsigned:
      return std::to_string(node.unsigned_value);
    case Type::kDouble:
      // 2.0 and 2 are one value.
      if (node.number == std::floor(node.number) && std::abs(node.number) < 1e15) {
        return std::to_string(int64_t(node.number));
      }
      return fmt::format("{}", node.number);
    case Type::kString:
      return "\"" + JsonTerms::escaped(node.text) + "\"";
    case Type::kArray:
      for (const Id item : node.items) out += (out.empty() ? "" : ",") + compact(item);
      return "[" + out + "]";
    case Type::kObject:
      for (size_t i = 0; i < node.items.size(); ++i) {
        out += (i == 0 ? "\"" : ",\"") + JsonTerms::escaped(node.keys[i]) + "\":" + compact(node.items[i]);
      }
      return "{" + out + "}";
  }
  return out;
}

}  // namespace synod
