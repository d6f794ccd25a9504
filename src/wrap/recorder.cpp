#include "wrap/recorder.h"

#include "ops/visitor.h"
#include "wrap/text_file.h"

namespace synod {

// Writes the operands of one op into its entry.
struct Recorder::Describer : OperandVisitor {
  explicit Describer(Entry& e) : entry(e) {}
  Entry& entry;

  void add(std::string_view role, char access, std::string_view type, std::string shape, int64_t bytes,
           const void* data, int64_t extent, std::string_view name) {
    entry.operands.push_back({std::string(role), access, std::string(type), std::move(shape), bytes,
                              static_cast<const std::byte*>(data), extent, std::string(name)});
  }
  void tensor(std::string_view role, char access, const Tensor& t) {
    const bool empty = t.data == nullptr || t.rows() == 0;
    const int64_t extent = empty ? 0 : t.row(t.rows() - 1) - t.data + row_bytes(t.type, t.inner());
    add(role, access, synod::name(t.type), shape_string(t), t.bytes(), t.data, extent, t.name);
  }
  void out(std::string_view role, const Tensor& t) { tensor(role, 'w', t); }
  void in(std::string_view role, const Tensor& t) { tensor(role, 'r', t); }
  void inout(std::string_view role, const Tensor& t) { tensor(role, 'm', t); }

  static std::string type_of(const Matrix& m) {
    const bool plain = m.storage == Storage::kPlain || m.storage == Storage::kBlock;
    return std::string(plain ? synod::name(m.type) : synod::name(m.storage));
  }
  void weight(std::string_view role, const Matrix& m) {
    add(role, 'r', type_of(m), fmt::format("[{}, {}]", m.n_out, m.n_in), m.bytes(), m.data, 0, m.name);
  }
  void rows_of(std::string_view role, const Matrix& m, int64_t n_rows) {
    add(role, 'r', type_of(m), fmt::format("[{}, {}]", m.n_out, m.n_in), m.rows(0, 1).bytes() * n_rows,
        m.data, 0, m.name);
  }
  void experts(std::string_view role, std::span<const Matrix> e, int64_t n_tokens, int64_t k) {
    ByteCounter counter;
    counter.experts(role, e, n_tokens, k);
    add(role, 'r', type_of(e[0]), fmt::format("[{}, {}, {}]", e.size(), e[0].n_out, e[0].n_in),
        counter.weights, e[0].data, 0, e[0].name);
  }
  // Cache rows are linked by their page table: rows lie in many places, a table belongs to one group and
  // layer.
  void cache(std::string_view role, char access, const CacheRows& rows, int64_t bytes) {
    const void* table = rows.sequences.empty() ? nullptr : rows.sequences[0].pages.data();
    add(role, access, synod::name(rows.type), fmt::format("[{}, {}]", bytes / rows.row_bytes, rows.row_dim),
        bytes, table, table == nullptr ? 0 : 1, rows.name);
  }
  void cache_in(std::string_view role, const CacheRows& rows, const BatchView& batch, int64_t window,
                int64_t ratio) {
    ByteCounter counter;
    counter.cache_in(role, rows, batch, window, ratio);
    cache(role, 'r', rows, counter.other);
  }
  void cache_out(std::string_view role, const CacheRows& rows, int64_t n) {
    cache(role, 'w', rows, n * rows.row_bytes);
  }
  void value(std::string_view value_name, double v) { entry.values.emplace_back(value_name, v); }
};

void Recorder::begin(const Label& label) {
  labels_.push_back(label);
  if (inner_ != nullptr) inner_->begin(label);
}

void Recorder::end() {
  if (inner_ != nullptr) inner_->end();
  labels_.pop_back();
}

template <typename Op>
void Recorder::record(const Op& op) {
  Entry entry;
  entry.label = labels_.empty() ? Label{} : labels_.back();
  entry.op = Op::kName;
  entry.mark = memory_.workspace().mark();
  Describer describer(entry);
  op.visit(describer);
  entry.issue = [op](Backend& backend) { backend(op); };
  ops_.push_back(std::move(entry));
  if (inner_ != nullptr) inner_->run(op);
}

#define SYNOD_PRIMITIVE(Op) \
  void Recorder::run(const Op& op) { record(op); }
#define SYNOD_FUSED(Op) \
  void Recorder::run(const Op& op) { record(op); }
#include "ops/ops.def"
#undef SYNOD_PRIMITIVE
#undef SYNOD_FUSED

void Recorder::replay(Backend& backend) const {
  Workspace& ws = backend.workspace();
  const Workspace::Scope scope(ws);
  for (const Entry& entry : ops_) {
    if (&ws == &memory_.workspace()) ws.resume(entry.mark);
    const Stage stage(backend, entry.label.layer, entry.label.part);
    entry.issue(backend);
  }
}

std::string Recorder::to_json() const {
  const auto access = [](char a) { return a == 'r' ? "read" : a == 'w' ? "write" : "in_place"; };
  std::string text = "{\"ops\": [";
  for (size_t i = 0; i < ops_.size(); ++i) {
    const Entry& e = ops_[i];
    text +=
        fmt::format(R"({}{{"index": {}, "layer": {}, "part": {}, "op": {}, "operands": [)",
                    i == 0 ? "\n" : ",\n", i, e.label.layer, json_string(e.label.part), json_string(e.op));
    for (size_t j = 0; j < e.operands.size(); ++j) {
      const Operand& o = e.operands[j];
      text += fmt::format(
          R"({}{{"role": {}, "access": "{}", "type": "{}", "shape": {}, "bytes": {}, "name": {}}})",
          j == 0 ? "" : ", ", json_string(o.role), access(o.access), o.type, o.shape, o.bytes,
          json_string(o.name));
    }
    text += "], \"values\": {";
    for (size_t j = 0; j < e.values.size(); ++j) {
      const auto& [name, value] = e.values[j];
      text += fmt::format("{}{}: {}", j == 0 ? "" : ", ", json_string(name), json_number(value));
    }
    text += "}}";
  }
  return text + "\n]}\n";
}

// Index of the last op before `reader` that wrote what `operand` reads, or -1. A plan without memory links by
// name.
int64_t Recorder::producer(size_t reader, const Operand& operand) const {
  const auto overlaps = [&](const Operand& o) {
    if (operand.data == nullptr || o.data == nullptr) return !operand.name.empty() && operand.name == o.name;
    return operand.data < o.data + o.extent && o.data < operand.data + operand.extent;
  };
  for (size_t i = reader; i-- > 0;) {
    for (const Operand& o : ops_[i].operands) {
      if (o.access != 'r' && overlaps(o)) return static_cast<int64_t>(i);
    }
  }
  return -1;
}

std::string Recorder::to_dot() const {
  std::string text = "digraph plan {\n  node [shape=box, fontname=\"monospace\"];\n";
  for (size_t i = 0; i < ops_.size(); ++i) {
    const Entry& e = ops_[i];
    int64_t bytes = 0;
    for (const Operand& o : e.operands) bytes += o.bytes;
    // Labels take the escapes that JSON strings have.
    text += fmt::format("  op{} [label={}];\n", i,
                        json_string(fmt::format("{}: {} ({} B)", e.label.text(), e.op, bytes)));
  }
  for (size_t i = 0; i < ops_.size(); ++i) {
    for (const Operand& o : ops_[i].operands) {
      if (o.access == 'w') continue;
      const int64_t from = producer(i, o);
      if (from >= 0)
        text += fmt::format("  op{} -> op{} [label={}];\n", from, i, json_string(o.role + " " + o.shape));
    }
  }
  return text + "}\n";
}

void Recorder::write(const std::string& path) const {
  write_text_file(path, path.ends_with(".dot") ? to_dot() : to_json());
}

}  // namespace synod
