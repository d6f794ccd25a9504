#include "text/pipeline_check.h"

#include <array>
#include <vector>

#include "text/utf8.h"

namespace synod {
namespace {

using Scheme = TokenizerData::Scheme;

constexpr std::string_view kVisibleBlank = "\xE2\x96\x81";

// The three patterns as published, with CR, LF and non-ASCII characters literal.
constexpr std::array<std::string_view, 3> kDeepseekPatterns = {
    R"(\p{N}{1,3})",
    "[\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+"
    "|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*"
    "|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
};

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// Reads four hex digits at `pos`; nothing when they are not there or name a surrogate.
std::optional<char32_t> four_hex_digits(std::string_view text, size_t pos) {
  if (pos + 4 > text.size()) return std::nullopt;
  char32_t value = 0;
  for (const char c : text.substr(pos, 4)) {
    if (hex_digit(c) < 0) return std::nullopt;
    value = value * 16 + char32_t(hex_digit(c));
  }
  if (value >= 0xD800 && value <= 0xDFFF) return std::nullopt;
  return value;
}

// Files spell the same pattern with escapes or with the characters themselves.
std::string without_character_escapes(std::string_view pattern) {
  std::string out;
  for (size_t pos = 0; pos < pattern.size(); ++pos) {
    if (pattern[pos] != '\\' || pos + 1 == pattern.size()) {
      out.push_back(pattern[pos]);
      continue;
    }
    const char escaped = pattern[++pos];
    const auto code = escaped == 'u' ? four_hex_digits(pattern, pos + 1) : std::nullopt;
    if (escaped == 'r') {
      out.push_back('\r');
    } else if (escaped == 'n') {
      out.push_back('\n');
    } else if (code) {
      append_utf8(out, *code);
      pos += 4;
    } else {
      out.push_back('\\');
      out.push_back(escaped);
    }
  }
  return out;
}

// The steps of a normalizer, pre-tokenizer or decoder: none for null, those of a (nested) Sequence, or
// itself.
void collect_steps(const JsonValue& step, std::string_view list_key, int depth,
                   std::vector<JsonValue>& steps) {
  if (!step.is_object() || step.text_or("type", "") != "Sequence" || depth > 8) {
    steps.push_back(step);
    return;
  }
  const JsonValue list = step.require(list_key);
  size_t i = 0;
  for (const auto element : list.array()) collect_steps(list.item(element, i++), list_key, depth + 1, steps);
}

std::vector<JsonValue> steps_of(const JsonValue& root, std::string_view key, std::string_view list_key) {
  std::vector<JsonValue> steps;
  if (const auto step = root.member(key)) collect_steps(*step, list_key, 0, steps);
  return steps;
}

bool is_type(const JsonValue& step, std::string_view type) {
  return step.is_object() && step.text_or("type", "") == type;
}

// A Replace of one literal text by another.
bool is_replace(const JsonValue& step, std::string_view from, std::string_view to) {
  if (!is_type(step, "Replace") || step.text_or("content", "") != to) return false;
  const auto pattern = step.member("pattern");
  if (!pattern || !pattern->is_object()) return false;
  return pattern->text_or("String", pattern->text_or("Regex", "")) == from;
}

void check_gemma_text_steps(const JsonValue& root) {
  constexpr std::string_view kNormalizer = "for byte-fallback BPE one Replace of \" \" by \"\u2581\"";
  const auto normalizers = steps_of(root, "normalizer", "normalizers");
  if (normalizers.size() != 1) {
    if (const auto found = root.member("normalizer")) found->refuse(kNormalizer);
    bad_file("{}: normalizer: supported is {}, got null", root.file(), kNormalizer);
  }
  if (!is_replace(normalizers[0], " ", kVisibleBlank)) normalizers[0].refuse(kNormalizer);

  // After the normalizer no blank is left to split at.
  for (const JsonValue& step : steps_of(root, "pre_tokenizer", "pretokenizers")) {
    const auto pattern = is_type(step, "Split") ? step.member("pattern") : std::nullopt;
    const bool at_blanks =
        pattern && pattern->is_object() && pattern->text_or("String", pattern->text_or("Regex", "")) == " ";
    if (!at_blanks || step.boolean_or("invert", false)) {
      step.refuse("for byte-fallback BPE null or a Split at \" \"");
    }
  }
}

void check_gemma_decoder(const JsonValue& root) {
  for (const JsonValue& step : steps_of(root, "decoder", "decoders")) {
    if (is_type(step, "ByteFallback") || is_type(step, "Fuse")) continue;
    if (!is_replace(step, kVisibleBlank, " ")) {
      step.refuse("for byte-fallback BPE Replace of \"\u2581\" by \" \", ByteFallback and Fuse");
    }
  }
}

void check_deepseek_split(const JsonValue& step, std::string_view pattern) {
  const auto found = is_type(step, "Split") ? step.member("pattern") : std::nullopt;
  const bool same = found && found->is_object() &&
                    without_character_escapes(found->text_or("Regex", "")) == pattern &&
                    step.text_or("behavior", "") == "Isolated" && !step.boolean_or("invert", false);
  if (!same) step.refuse(fmt::format("for byte-level BPE an isolating Split by the pattern {}", pattern));
}

void check_deepseek_text_steps(const JsonValue& root) {
  for (const JsonValue& step : steps_of(root, "normalizer", "normalizers")) {
    step.refuse("for byte-level BPE no normalizer");
  }
  const auto steps = steps_of(root, "pre_tokenizer", "pretokenizers");
  if (steps.size() != kDeepseekPatterns.size() + 1) {
    constexpr std::string_view kSequence = "for byte-level BPE DeepSeek's three Splits and ByteLevel";
    if (const auto found = root.member("pre_tokenizer")) found->refuse(kSequence);
    bad_file("{}: pre_tokenizer: supported is {}, got null", root.file(), kSequence);
  }
  for (size_t i = 0; i < kDeepseekPatterns.size(); ++i) check_deepseek_split(steps[i], kDeepseekPatterns[i]);
  const JsonValue& last = steps.back();
  // Both members default to true in the format.
  if (!is_type(last, "ByteLevel") || last.boolean_or("add_prefix_space", true) ||
      last.boolean_or("use_regex", true)) {
    last.refuse("ByteLevel with add_prefix_space and use_regex false");
  }
}

void check_deepseek_decoder(const JsonValue& root) {
  for (const JsonValue& step : steps_of(root, "decoder", "decoders")) {
    if (!is_type(step, "ByteLevel")) step.refuse("for byte-level BPE the decoder ByteLevel");
  }
}

void check_model(const JsonValue& model) {
  if (model.text_or("type", "BPE") != "BPE") model.require("type").refuse("\"BPE\"");
  if (model.boolean_or("ignore_merges", false)) model.require("ignore_merges").refuse("false");
  for (const std::string_view key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!model.text_or(key, "").empty()) model.require(key).refuse("null");
  }
  if (const auto dropout = model.member("dropout"); dropout && dropout->number() != 0.0) {
    dropout->refuse("null");
  }
}

}  // namespace

TokenizerData::Scheme check_pipeline(const JsonValue& root) {
  const JsonValue model = root.require("model");
  check_model(model);
  if (model.boolean_or("byte_fallback", false)) {
    check_gemma_text_steps(root);
    check_gemma_decoder(root);
    return Scheme::kCharacterBpe;
  }
  check_deepseek_text_steps(root);
  check_deepseek_decoder(root);
  return Scheme::kByteLevelBpe;
}

std::optional<std::string> leading_special_token(const JsonValue& root) {
  for (const JsonValue& step : steps_of(root, "post_processor", "processors")) {
    if (is_type(step, "ByteLevel")) continue;  // only concerns offsets
    if (!is_type(step, "TemplateProcessing")) step.refuse("TemplateProcessing or ByteLevel");
    const JsonValue single = step.require("single");
    for (const auto element : single.array()) {
      const auto special = single.item(element, 0).member("SpecialToken");
      if (special) return std::string(special->require("id").text());
      break;
    }
  }
  return std::nullopt;
}

}  // namespace synod
