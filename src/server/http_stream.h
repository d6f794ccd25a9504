// A connection over a socket, or over TLS on a socket: Beast reads the requests. Included by http_server.cpp
// only, because these headers cost ten seconds of compilation.
#pragma once

#include <boost/asio/ssl.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <optional>

#include "server/http_connection.h"

namespace synod::server {

namespace beast_http = boost::beast::http;
using TlsStream = asio::ssl::stream<Tcp::socket>;

// Reading and writing over `Stream`, a socket or TLS over one.
template <typename Stream>
class Connection final : public ConnectionBase {
 public:
  template <typename... Args>
  Connection(Hub& hub, Tcp::endpoint remote, Args&&... args)
      : ConnectionBase(hub, std::move(remote)),
        stream_(std::forward<Args>(args)...),
        buffer_(static_cast<size_t>(hub.options.max_header_bytes) + kReadBytes) {}

  void begin() override {
    ErrorCode ignored;
    stream_.lowest_layer().set_option(Tcp::no_delay(true), ignored);
    buffer_.reserve(kReadBytes);
    if constexpr (std::is_same_v<Stream, TlsStream>) {
      set_deadline(hub_.options.header_timeout);
      stream_.async_handshake(asio::ssl::stream_base::server, [self = self()](const ErrorCode& error) {
        error ? self->close() : self->next_request();
      });
    } else {
      next_request();
    }
  }

 private:
  static constexpr size_t kReadBytes = 8192;
  using Parser = beast_http::request_parser<beast_http::string_body>;

  std::shared_ptr<Connection> self() { return std::static_pointer_cast<Connection>(shared_from_this()); }

  void socket_write(std::string text) override {
    write_text_ = std::move(text);
    write_rest(0);
  }

  // By pieces, so that any progress moves the deadline of a slow but living reader.
  void write_rest(size_t done) {
    const auto rest =
        asio::buffer(write_text_.data() + done, std::min(write_text_.size() - done, kWriteBytes));
    stream_.async_write_some(rest, [self = self(), done](const ErrorCode& error, size_t n) {
      if (error || done + n == self->write_text_.size()) return self->written(error);
      self->set_deadline(self->hub_.options.write_timeout);
      self->write_rest(done + n);
    });
  }

  void socket_read_more() override {
    stream_.async_read_some(buffer_.prepare(kReadBytes), [self = self()](const ErrorCode& error, size_t n) {
      self->buffer_.commit(n);
      self->received(error, n);
    });
  }

  void socket_close() override {
    ErrorCode ignored;
    stream_.lowest_layer().close(ignored);
  }

  void socket_shutdown_send() override {
    ErrorCode ignored;
    stream_.lowest_layer().shutdown(Tcp::socket::shutdown_send, ignored);
  }

  bool has_buffered() const override { return buffer_.size() > 0; }
  void discard_buffer() override { buffer_.consume(buffer_.size()); }

  void read_header() override {
    parser_.emplace();
    parser_->header_limit(static_cast<uint32_t>(hub_.options.max_header_bytes));
    parser_->body_limit(static_cast<uint64_t>(hub_.options.max_body_bytes));
    set_deadline(hub_.options.header_timeout);
    beast_http::async_read_header(stream_, buffer_, *parser_,
                                  [self = self()](const ErrorCode& error, size_t) {
                                    error ? self->read_failed(error) : self->header_complete();
                                  });
  }

  void read_failed(const ErrorCode& error) {
    using E = beast_http::error;
    if (error == E::header_limit || error == E::buffer_overflow) {
      return refuse(431, fmt::format("the header exceeds {} bytes", hub_.options.max_header_bytes));
    }
    if (error == E::body_limit) {
      return refuse(413, fmt::format("the body exceeds {} bytes", hub_.options.max_body_bytes));
    }
    const bool is_parse_error = error.category() == beast_http::make_error_code(E::bad_method).category() &&
                                error != E::end_of_stream && error != E::partial_message;
    if (is_parse_error) return refuse(400, fmt::format("not an HTTP request: {}", error.message()));
    close();
  }

  HttpRequest head_of_request() const {
    const auto& message = parser_->get();
    HttpRequest request;
    request.method.assign(message.method_string().data(), message.method_string().size());
    const std::string_view target(message.target().data(), message.target().size());
    const size_t mark = target.find('?');
    request.path = percent_decode(target.substr(0, mark)).value_or("");
    if (mark != std::string_view::npos) request.query = target.substr(mark + 1);
    for (const auto& field : message) {
      std::string name(field.name_string().data(), field.name_string().size());
      for (char& c : name) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
      request.headers.emplace_back(std::move(name), std::string(field.value().data(), field.value().size()));
    }
    request.id = request_id(request.header("x-request-id"));
    request.remote = fmt::format("{}:{}", remote_.address().to_string(), remote_.port());
    return request;
  }

  void header_complete() {
    HttpRequest head = head_of_request();
    if (head.path.empty() || head.path.front() != '/') {
      return refuse(400, "the request target is not a path");
    }
    if (const auto refusal = hub_.handlers.admit(head)) {
      return refuse(refusal->first, refusal->second, std::move(head));
    }
    head_ = std::move(head);
    set_deadline(hub_.options.body_timeout);
    if (parser_->get().version() >= 11 && head_.header("expect") == "100-continue" && !parser_->is_done()) {
      static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
      asio::async_write(
          stream_, asio::buffer(kContinue.data(), kContinue.size()),
          [self = self()](const ErrorCode& error, size_t) { error ? self->close() : self->read_body(); });
      return;
    }
    read_body();
  }

  void read_body() {
    const auto size = static_cast<int64_t>(parser_->get().body().size());
    hub_.bodies_bytes += size - counted_;
    counted_ = size;
    if (parser_->is_done()) return request_complete();
    if (hub_.bodies_bytes > hub_.options.max_bodies_bytes) {
      uncount();
      return refuse(503, "too many large requests at once; try again later");
    }
    beast_http::async_read_some(stream_, buffer_, *parser_, [self = self()](const ErrorCode& error, size_t) {
      if (!error) return self->read_body();
      self->uncount();
      self->read_failed(error);
    });
  }

  void uncount() {
    hub_.bodies_bytes -= counted_;
    counted_ = 0;
  }

  void request_complete() {
    auto message = parser_->release();
    parser_.reset();
    HttpRequest request = std::move(head_);
    request.body = std::move(message.body());
    take_request(std::move(request), message.version(), message.keep_alive(), std::exchange(counted_, 0));
  }

  static constexpr size_t kWriteBytes = size_t{256} << 10;
  Stream stream_;
  boost::beast::flat_buffer buffer_;
  std::optional<Parser> parser_;
  HttpRequest head_;
  std::string write_text_;  // being written
  int64_t counted_ = 0;     // bytes of the body being read that hub_.bodies_bytes includes
};

}  // namespace synod::server
