#include "text/jinja/template.h"

#include <ctime>

#include "base/error.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/parser.h"

namespace synod::jinja {

struct Template::Impl {
  std::string source_name;
  Limits limits;
  Program program;
  std::function<int64_t()> clock = [] { return static_cast<int64_t>(std::time(nullptr)); };
};

Template::Template(std::string_view source, std::string source_name, const Whitespace& whitespace,
                   const Limits& limits)
    : impl_(std::make_unique<Impl>()) {
  impl_->source_name = std::move(source_name);
  impl_->limits = limits;
  if (source.size() > limits.max_source_bytes) {
    bad_file("{}: {} bytes long, at most {} are read", impl_->source_name, source.size(),
             limits.max_source_bytes);
  }
  try {
    impl_->program = parse(tokenize(source, whitespace), limits.max_source_depth);
  } catch (const Error& error) {
    throw Error(error.kind(), fmt::format("{}: {}", impl_->source_name, error.what()));
  }
}

Template::~Template() = default;
Template::Template(Template&&) noexcept = default;
Template& Template::operator=(Template&&) noexcept = default;

Text Template::render(const std::vector<Variable>& variables) const {
  Interpreter interpreter(impl_->program, impl_->limits, impl_->clock, impl_->source_name);
  return interpreter.run(variables);
}

void Template::set_clock(std::function<int64_t()> clock) { impl_->clock = std::move(clock); }

}  // namespace synod::jinja
