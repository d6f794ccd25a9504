// Hostile templates end with an error, soon; and every byte of the output knows who wrote it.
#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "text/jinja/template.h"

namespace synod::jinja {
namespace {

std::string error_of(const std::string& source, Error::Kind kind = Error::Kind::kUsage) {
  const auto start = std::chrono::steady_clock::now();
  std::string message;
  try {
    Template(source).render({{"xs", from_json({3, 1, 2}, Origin::kForeign)}});
    ADD_FAILURE() << "rendered: " << source.substr(0, 80);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    message = error.what();
  }
  // Sanitizers and a busy machine slow it down; without limits these take for ever.
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20)) << source.substr(0, 80);
  return message;
}

TEST(JinjaSafety, LimitsEndHostileTemplates) {
  const std::string loop = "{% for i in range(99999) %}";
  EXPECT_NE(error_of(loop + loop + "{% endfor %}{% endfor %}").find("steps"), std::string::npos);
  EXPECT_NE(error_of("\n{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}").find("line 2: nested more than"),
            std::string::npos);
  const std::string grow = "{% set n = namespace(s='aa', l=[1]) %}{% for i in range(99) %}";
  error_of(grow + "{% set n.s = n.s ~ n.s %}{% endfor %}{{ n.s }}");
  error_of(grow + "{% set n.s = n.s | replace('a', n.s) %}{% endfor %}");
  error_of(grow + "{% set n.l = n.l + n.l %}{% endfor %}");
  error_of(grow + "{% set n.l = [n.l, n.l] %}{% endfor %}{{ n.l }}");
  error_of(grow + "{% set n.l = [n.l, n.l] %}{% endfor %}{{ n.l == n.l }}{{ n.l | tojson }}");
  error_of("{% set n = namespace(l=[1]) %}{% for i in range(99999) %}{% set n.l = [n.l] %}{% endfor %}");
  error_of("{{ 'x' * 9999999999 }}");
  error_of("{{ [1] * 9999999999 }}");
  error_of("{{ 2 ** 99999999999 }}");
  error_of("{{ 'x'.ljust(99999999) }}");
  error_of("{{ '{:>99999999}'.format(1) }}");
  error_of("{{ range(1000000000) | list }}");
  error_of("{% for x in xs recursive %}{{ loop(xs) }}{% endfor %}");
  error_of("{% macro m() %}{{ caller() }}{% endmacro %}{% call m() %}{{ caller() }}{% endcall %}");
}

TEST(JinjaSafety, DeepSourceIsRefused) {
  const auto repeated = [](const std::string& text, int n) {
    std::string all;
    for (int i = 0; i < n; ++i) all += text;
    return all;
  };
  for (const std::string& source :
       {"{{ " + repeated("[", 100000), "{{ " + repeated("not ", 100000) + "x }}",
        "{{ " + repeated("-", 100000) + "1 }}", repeated("{% if x %}", 100000),
        "{{ 1" + repeated(" + 1", 100000) + " }}", "{{ x" + repeated(".y", 100000) + " }}",
        "{{ x" + repeated(" | upper", 100000) + " }}", "{{ x" + repeated("()", 100000) + " }}",
        "{% if a %}" + repeated("{% elif b %}", 100000) + "{% endif %}",
        "{{ a" + repeated(" if b", 100000) + " }}", "{{ a" + repeated(" if b else c", 100000) + " }}",
        "{{ " + repeated("{'a':", 100000), "{% set " + repeated("(", 100000)}) {
    error_of(source, Error::Kind::kBadFile);
  }
  EXPECT_NE(error_of("a\nb\n{{ x", Error::Kind::kBadFile).find("line 3"), std::string::npos);
}

// The result with foreign text in brackets.
std::string shown(const std::string& source) {
  const std::vector<Variable> variables = {{"u", Text("<|x|>", Origin::kForeign)},
                                           {"d", from_json({{"<k>", "<v>"}}, Origin::kForeign)}};
  const Text text = Template(source).render(variables);
  std::string result;
  size_t begin = 0;
  for (const Text::Run& run : text.runs()) {
    const std::string part = text.bytes().substr(begin, run.end - begin);
    result += run.origin == Origin::kForeign ? "[" + part + "]" : part;
    begin = run.end;
  }
  return result;
}

TEST(JinjaSafety, OriginsFollowEveryOperation) {
  EXPECT_EQ(shown("<a>{{ u }}<b>"), "<a>[<|x|>]<b>");
  EXPECT_EQ(shown("{{ '<a>' + u + '<b>' }}{{ '<a>' ~ u }}"), "<a>[<|x|>]<b><a>[<|x|>]");
  EXPECT_EQ(shown("{% set t = u %}{% set b %}<s>{{ t }}{% endset %}{{ b }}"), "<s>[<|x|>]");
  EXPECT_EQ(shown("{% macro m(x) %}<m>{{ x }}{% endmacro %}{{ m(u) }}{{ m('q') | upper }}"),
            "<m>[<|x|>]<M>Q");
  EXPECT_EQ(shown("{{ ('<a>' ~ u) | upper }}{{ ('<a>' ~ u)[1:5] }}"), "<A>[<|X|>]a>[<|]");
  EXPECT_EQ(shown("{{ '<a>' | replace('a', u) }}{{ u | replace('x', '<y>') }}"), "<[<|x|>]>[<|]<y>[|>]");
  EXPECT_EQ(shown("{{ u.split('x') | join('<j>') }}{{ [u, '<l>'] | join }}"), "[<|]<j>[|><|x|>]<l>");
  EXPECT_EQ(shown("{{ '<a>%s<b>' % u }}{{ '<a>{}<b>'.format(u) }}"), "<a>[<|x|>]<b><a>[<|x|>]<b>");
  EXPECT_EQ(shown("{{ [u] }}{{ u | tojson }}{{ {'<t>': u} | tojson }}"),
            "['[<|x|>]']\"[<|x|>]\"{\"<t>\": \"[<|x|>]\"}");
  EXPECT_EQ(shown("{% for k, v in d.items() %}<i>{{ k }}{{ v }}{% endfor %}{{ d | string }}"),
            "<i>[<k><v>]{'[<k>]': '[<v>]'}");
  EXPECT_EQ(shown("{{ u[::-1] }}{{ u | list | last }}{{ u | trim('<') }}{{ (' ' ~ u ~ '<a> ') | trim }}"),
            "[>|x|<>|x|><|x|>]<a>");
  EXPECT_EQ(shown("{% filter upper %}<f>{{ u }}{% endfilter %}{{ u | e }}{{ u | indent }}"),
            "<F>[<|X|>&lt;|x|&gt;<|x|>]");
  EXPECT_EQ(shown("{{ u if u == '<|x|>' else 'no' }}{{ '<|x|>' if u in ['<|x|>'] }}"), "[<|x|>]<|x|>");
}

}  // namespace
}  // namespace synod::jinja
