// One connection: whose turn it is, what is still to be written, what watches the clock and the client's
// leaving. http_stream.h adds the socket. Everything here runs on the I/O thread, except ReplyHandle.
#pragma once

#include <atomic>
#include <boost/asio.hpp>
#include <deque>
#include <optional>

#include "base/error.h"
#include "server/http.h"

namespace synod::server {

namespace asio = boost::asio;
using Tcp = asio::ip::tcp;
using ErrorCode = boost::system::error_code;
using Clock = std::chrono::steady_clock;

class ConnectionBase;

// `offered` when it is at most 128 letters, digits, ".", "_" or "-"; else a new id.
std::string request_id(std::string_view offered);

// What the connections share. Lives as long as the server.
struct Hub {
  const HttpOptions& options;
  const HttpHandlers& handlers;
  asio::io_context& io;
  std::function<void(HttpRequest, std::shared_ptr<HttpReply>)> dispatch;
  int64_t bodies_bytes = 0;  // held by requests being received or handled
  int64_t n_connections = 0;
  int64_t n_busy = 0;  // requests whose replies are not complete
  bool is_draining = false;
  std::function<void(ConnectionBase*)> forget;
};

// The part that does not depend on the stream's type: state of a request and of its reply.
class ConnectionBase : public std::enable_shared_from_this<ConnectionBase> {
 public:
  explicit ConnectionBase(Hub& hub, Tcp::endpoint remote);
  virtual ~ConnectionBase();

  virtual void begin() = 0;
  void close_if_idle();
  void close();

  // The reply of request `sequence`; calls for another request are late and do nothing.
  void reply_send(uint64_t sequence, HttpHead head, std::string body);
  void reply_start(uint64_t sequence, HttpHead head, std::string keepalive, std::chrono::milliseconds every);
  void reply_write(uint64_t sequence, std::string text);
  void reply_finish(uint64_t sequence);
  void reply_abort(uint64_t sequence);
  void reply_on_close(uint64_t sequence, std::function<void()> callback);

  Hub& hub() { return hub_; }

 protected:
  enum class State {
    kIdle,     // waits for the first byte of a request
    kReading,  // header or body on their way
    kBusy,     // a handler owns the request
    kLinger,   // reply sent; reads and discards, so that the client can read it before the reset
    kClosed,
  };

  virtual void socket_write(std::string text) = 0;  // completes with written()
  virtual void socket_read_more() = 0;              // completes with received(); at most one at a time
  virtual void socket_close() = 0;
  virtual void socket_shutdown_send() = 0;
  virtual void read_header() = 0;
  virtual bool has_buffered() const = 0;
  virtual void discard_buffer() = 0;

  void next_request();
  void received(const ErrorCode& error, size_t bytes);
  void written(const ErrorCode& error);
  // A complete request; hands it to the workers.
  void take_request(HttpRequest request, unsigned version, bool keep_alive, int64_t body_bytes);
  // A reply before there is a request, or instead of reading the rest of one. The connection ends with it.
  void refuse(HttpHead head, std::string body, HttpRequest request);
  void refuse(int status, std::string_view message);
  void set_deadline(std::chrono::milliseconds limit);
  void clear_deadline();

  Hub& hub_;
  Tcp::endpoint remote_;
  State state_ = State::kIdle;
  bool is_reading_ = false;  // a read is pending

 private:
  void queue(std::string text);
  void flush();
  std::string head_text(const HttpHead& head, std::optional<size_t> length);
  void reply_complete();
  void finish_log(bool is_complete);
  void client_left();
  void arm_keepalive();
  void linger();

  asio::steady_timer deadline_;
  asio::steady_timer keepalive_timer_;
  HttpRequest request_;  // without its body while a handler has it
  uint64_t sequence_ = 0;
  unsigned version_ = 11;  // 10 or 11
  bool keep_alive_ = true;
  bool is_head_request_ = false;
  bool is_streaming_ = false;
  bool is_chunked_ = false;
  bool is_ending_ = false;     // everything of the reply is queued
  bool is_half_open_ = false;  // the client closed its side
  bool is_writing_ = false;
  std::deque<std::string> unsent_;
  int64_t unsent_bytes_ = 0;   // queued or being written
  int64_t writing_bytes_ = 0;  // being written
  std::string keepalive_;
  std::chrono::milliseconds keepalive_every_{0};
  Clock::time_point last_write_;
  Clock::time_point started_;
  std::function<void()> on_close_;
  int64_t body_bytes_ = 0;  // of hub_.bodies_bytes
  int64_t lingered_bytes_ = 0;
  HttpLogEntry entry_;
};

// A reply as the handlers hold it.
class ReplyHandle final : public HttpReply {
 public:
  ReplyHandle(std::shared_ptr<ConnectionBase> connection, uint64_t sequence)
      : connection_(std::move(connection)), sequence_(sequence) {}
  ~ReplyHandle() override {
    if (!is_done_) abort();
  }
  ReplyHandle(const ReplyHandle&) = delete;
  ReplyHandle& operator=(const ReplyHandle&) = delete;

  void send(HttpHead head, std::string body) override {
    is_done_ = true;
    post([head = std::move(head), body = std::move(body)](ConnectionBase& c, uint64_t sequence) mutable {
      c.reply_send(sequence, std::move(head), std::move(body));
    });
  }
  void start(HttpHead head, std::string keepalive, std::chrono::milliseconds every) override {
    post([head = std::move(head), keepalive = std::move(keepalive), every](ConnectionBase& c,
                                                                           uint64_t sequence) mutable {
      c.reply_start(sequence, std::move(head), std::move(keepalive), every);
    });
  }
  void write(std::string text) override {
    if (text.empty()) return;
    post([text = std::move(text)](ConnectionBase& c, uint64_t sequence) mutable {
      c.reply_write(sequence, std::move(text));
    });
  }
  void finish() override {
    is_done_ = true;
    post([](ConnectionBase& c, uint64_t sequence) { c.reply_finish(sequence); });
  }
  void abort() override {
    is_done_ = true;
    post([](ConnectionBase& c, uint64_t sequence) { c.reply_abort(sequence); });
  }
  void on_close(std::function<void()> callback) override {
    post([callback = std::move(callback)](ConnectionBase& c, uint64_t sequence) mutable {
      c.reply_on_close(sequence, std::move(callback));
    });
  }

 private:
  template <typename F>
  void post(F&& f) {
    asio::post(connection_->hub().io, [c = connection_, sequence = sequence_,
                                       call = std::forward<F>(f)]() mutable { call(*c, sequence); });
  }

  std::shared_ptr<ConnectionBase> connection_;
  uint64_t sequence_;
  std::atomic<bool> is_done_{false};
};

}  // namespace synod::server
