#include "models/gemma4/argument_reader.h"

#include "models/marked_parser.h"

namespace synod::gemma4 {
namespace {

bool is_blank(unsigned char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && is_blank(static_cast<unsigned char>(text.front()))) text.remove_prefix(1);
  while (!text.empty() && is_blank(static_cast<unsigned char>(text.back()))) text.remove_suffix(1);
  return text;
}

}  // namespace

void ArgumentReader::open(std::string& json) {
  levels_.clear();
  state_ = State::kValue;
  push(/*is_object=*/true, json);
}

ArgumentReader::Status ArgumentReader::take(unsigned char byte, std::string& json) {
  switch (state_) {
    case State::kKey:
      key(byte, json);
      break;
    case State::kKeyString:
      if (byte == kQuote) {
        state_ = State::kAfterKey;
      } else {
        text_ += static_cast<char>(byte);
      }
      break;
    case State::kAfterKey:
      if (byte == ':') {
        end_key(json);
      } else if (!is_blank(byte)) {
        state_ = State::kFailed;
      }
      break;
    case State::kValue:
      value(byte, json);
      break;
    case State::kString:
      if (byte == kQuote) {
        json += '"';
        state_ = State::kAfterValue;
      } else {
        const char c = static_cast<char>(byte);
        append_json_escaped(json, std::string_view(&c, 1));
      }
      break;
    case State::kPlainString:
    case State::kPlainEscape:
      text_ += static_cast<char>(byte);
      if (state_ == State::kPlainEscape) {
        state_ = State::kPlainString;
      } else if (byte == '\\') {
        state_ = State::kPlainEscape;
      } else if (byte == '"') {
        state_ = is_json(text_, 1) ? State::kAfterValue : State::kFailed;
        json += text_;
      }
      break;
    case State::kBare:
      if (byte == ',' || byte == '}' || byte == ']') {
        end_bare(json);
        if (state_ == State::kAfterValue) separator(byte, json);
      } else if (byte == kQuote) {
        state_ = State::kFailed;
      } else {
        text_ += static_cast<char>(byte);
      }
      break;
    case State::kAfterValue:
      separator(byte, json);
      break;
    case State::kDone:
    case State::kFailed:
      break;
  }
  if (state_ == State::kDone) return Status::kDone;
  return state_ == State::kFailed ? Status::kFailed : Status::kMore;
}

void ArgumentReader::key(unsigned char byte, std::string& json) {
  const bool empty = text_.empty();
  if (empty && is_blank(byte)) return;
  if (byte == ':') {
    end_key(json);
  } else if (byte == kQuote) {
    text_.clear();
    state_ = empty ? State::kKeyString : State::kFailed;
  } else if (empty && byte == '}') {
    separator(byte, json);
  } else if (byte == '}' || byte == ',') {
    state_ = State::kFailed;  // a key without a value
  } else {
    text_ += static_cast<char>(byte);
  }
}

void ArgumentReader::end_key(std::string& json) {
  std::string key(state_ == State::kAfterKey ? std::string_view(text_) : trimmed(text_));
  if (state_ == State::kKey && key.size() >= 2 && key.front() == '"' && key.back() == '"') {
    key = key.substr(1, key.size() - 2);
  }
  text_.clear();
  if (!levels_.back().keys.insert(key).second) {
    state_ = State::kFailed;
    return;
  }
  comma(json);
  json += '"';
  append_json_escaped(json, key);
  json += "\":";
  state_ = State::kValue;
}

void ArgumentReader::value(unsigned char byte, std::string& json) {
  if (is_blank(byte)) return;
  const bool in_array = !levels_.back().is_object;
  if (in_array && byte == ']') {
    separator(byte, json);
    return;
  }
  if (byte == ',' || byte == '}' || byte == ']' || byte == ':') {
    state_ = State::kFailed;  // no value
    return;
  }
  if (in_array) comma(json);
  text_.clear();
  if (byte == kQuote) {
    json += '"';
    state_ = State::kString;
  } else if (byte == '{' || byte == '[') {
    push(byte == '{', json);
  } else {
    text_ += static_cast<char>(byte);
    state_ = byte == '"' ? State::kPlainString : State::kBare;
  }
}

void ArgumentReader::end_bare(std::string& json) {
  const std::string_view word = trimmed(text_);
  if (word == "None") {
    json += "null";
  } else if (word == "True") {
    json += "true";
  } else if (word == "False") {
    json += "false";
  } else if (is_json(word, 1)) {
    json += word;
  } else {
    json += '"';
    append_json_escaped(json, word);
    json += '"';
  }
  text_.clear();
  state_ = State::kAfterValue;
}

void ArgumentReader::separator(unsigned char byte, std::string& json) {
  const bool is_object = levels_.back().is_object;
  if (byte == ',') {
    state_ = is_object ? State::kKey : State::kValue;
    text_.clear();
  } else if (byte == (is_object ? '}' : ']')) {
    json += static_cast<char>(byte);
    levels_.pop_back();
    state_ = levels_.empty() ? State::kDone : State::kAfterValue;
  } else if (!is_blank(byte)) {
    state_ = State::kFailed;
  }
}

void ArgumentReader::push(bool is_object, std::string& json) {
  if (static_cast<int>(levels_.size()) >= max_depth_) {
    state_ = State::kFailed;
    return;
  }
  levels_.push_back({is_object});
  json += is_object ? '{' : '[';
  text_.clear();
  state_ = is_object ? State::kKey : State::kValue;
}

void ArgumentReader::comma(std::string& json) {
  if (levels_.back().has_items) json += ',';
  levels_.back().has_items = true;
}

}  // namespace synod::gemma4
