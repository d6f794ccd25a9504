// parse_json: a DOM built from events, so that depth and duplicate keys are checked before anything is
// stored.
#include "formats/strict_json.h"

#include <algorithm>
#include <vector>

#include "formats/checkpoint.h"

namespace synod {
namespace {

using nlohmann::json;

constexpr size_t kMaxDepth = 64;
constexpr size_t kMaxBytes = 64 << 20;

class DomBuilder {
 public:
  explicit DomBuilder(const JsonPosition& position) : position_(position) {}

  bool null() { return add(nullptr); }
  bool boolean(bool value) { return add(value); }
  bool number_integer(json::number_integer_t value) { return add(value); }
  bool number_unsigned(json::number_unsigned_t value) { return add(value); }
  bool number_float(json::number_float_t value, const std::string&) { return add(value); }
  bool string(std::string& value) { return add(std::move(value)); }
  bool binary(json::binary_t&) { return false; }  // not in JSON text

  bool start_object(size_t) { return open(json::object()); }
  bool start_array(size_t) { return open(json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }

  bool key(std::string& name) {
    auto [it, inserted] = open_.back()->get_ref<json::object_t&>().emplace(std::move(name), nullptr);
    if (!inserted) bad_json(position_, "duplicate key \"{}\"", printable(it->first));
    member_ = &it->second;
    return true;
  }

  bool parse_error(size_t, const std::string&, const json::exception& error) {
    bad_json_syntax(position_, error);
  }

  json take() { return std::move(root_); }

 private:
  json* place(json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    if (open_.back()->is_object()) {
      *member_ = std::move(value);
      return member_;
    }
    auto& array = open_.back()->get_ref<json::array_t&>();
    return &array.emplace_back(std::move(value));
  }
  bool add(json value) {
    place(std::move(value));
    return true;
  }
  bool open(json value) {
    if (open_.size() >= kMaxDepth) bad_json(position_, "nested deeper than {} levels", kMaxDepth);
    open_.push_back(place(std::move(value)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  const JsonPosition& position_;
  json root_;
  // Containers not yet closed, outermost first. A parent does not grow while its child is open, so the
  // pointers stay valid.
  std::vector<json*> open_;
  json* member_ = nullptr;  // value of the last key
};

}  // namespace

std::string printable(std::string_view text, size_t max_chars) {
  std::string result;
  for (const char c : text.substr(0, max_chars)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      result += fmt::format("\\x{:02x}", byte);
    } else {
      result += c;
    }
  }
  if (text.size() > max_chars) result += fmt::format("... ({} bytes)", text.size());
  return result;
}

std::string JsonPosition::describe() const {
  const std::string_view read = text_.substr(0, offset_);
  const auto line = 1 + std::count(read.begin(), read.end(), '\n');
  const size_t line_start = read.rfind('\n');
  const size_t column = line_start == std::string_view::npos ? read.size() : read.size() - line_start - 1;
  return fmt::format("{}: line {}, column {}", file_, line, column);
}

void bad_json_syntax(const JsonPosition& position, const json::exception& error) {
  // "[json.exception.parse_error.101] parse error at line 1, column 2: <detail>"
  std::string_view detail = error.what();
  const size_t colon = detail.find(": ");
  if (colon != std::string_view::npos) detail.remove_prefix(colon + 2);
  bad_json(position, "not valid JSON: {}", printable(detail));
}

void check_no_nul(std::string_view text, JsonPosition& position) {
  const size_t nul = text.find('\0');
  if (nul == std::string_view::npos) return;
  position.set(nul + 1);
  bad_json(position, "not valid JSON: NUL byte");
}

json parse_json(std::string_view text, const std::string& file_name) {
  if (text.size() > kMaxBytes) {
    bad_file("{}: expected at most {} bytes of JSON, got {}", file_name, kMaxBytes, text.size());
  }
  JsonPosition position(text, file_name);
  DomBuilder builder(position);
  parse_json_events(text, position, builder);
  return builder.take();
}

}  // namespace synod
