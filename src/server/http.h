// What the API layer sees of HTTP: a request, a reply that any thread may write, and the server's limits.
//
// One I/O thread owns every socket (http_server.cpp, the only file that includes Boost). Thousands of idle
// streams therefore cost memory but no threads, and no state of a connection needs a lock. Handlers run on
// worker threads (GET requests, which only read counters, on the I/O thread, so that /health answers while
// long prompts are being tokenized). A reply is written by posting to the I/O thread.
//
// The other shape, a thread per connection with blocking writes, would let 2,000 idle streams pin 2,000
// threads and would see a disconnect only at the next write.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace synod::server {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;   // "POST"
  std::string path;     // "/v1/models", percent-decoded
  std::string query;    // what follows '?', as sent
  HttpHeaders headers;  // names in lower case
  std::string body;
  std::string id;      // the client's x-request-id when it is short and plain, else one of ours
  std::string remote;  // "127.0.0.1:40112"

  // First header of this (lower case) name; empty when absent.
  std::string_view header(std::string_view name) const;
};

struct HttpHead {
  int status = 200;
  std::string content_type = "application/json";
  HttpHeaders headers;
};

// The reply to one request. Every method may be called from any thread; after the client has gone they do
// nothing. Dropping the last pointer to an unfinished reply closes the connection.
class HttpReply {
 public:
  virtual ~HttpReply() = default;
  // A whole reply. `body` is sent with its length.
  virtual void send(HttpHead head, std::string body) = 0;
  // Begins a streamed reply. When nothing was written for `interval`, `keepalive` is sent (an SSE comment,
  // say); an empty text sends nothing.
  virtual void start(HttpHead head, std::string keepalive, std::chrono::milliseconds interval) = 0;
  virtual void write(std::string text) = 0;
  virtual void finish() = 0;
  // The connection ends without the closing chunk, so that the client sees a failure.
  virtual void abort() = 0;
  // Called once, on the I/O thread, when the client goes away before the reply is complete; at once if it
  // already has. It must not block.
  virtual void on_close(std::function<void()> callback) = 0;
};

// One line of the access log.
struct HttpLogEntry {
  std::string id, remote, method, path;
  int status = 0;             // 0 = the client went away before a reply began
  int64_t bytes_in = 0;       // of the body
  int64_t bytes_out = 0;      // of the whole reply
  double milliseconds = 0.0;  // from the end of the request to the end of the reply
  bool is_complete = false;   // the reply was written to its end
};

struct HttpOptions {
  std::string host = "127.0.0.1";                  // name or address
  uint16_t port = 8080;                            // 0 = any free one
  std::string tls_certificate_file, tls_key_file;  // PEM; both or none

  int64_t max_header_bytes = int64_t{64} << 10;      // more: 431
  int64_t max_body_bytes = int64_t{16} << 20;        // more: 413
  int64_t max_bodies_bytes = int64_t{256} << 20;     // of all requests being received or handled; more: 503
  int64_t max_unsent_bytes = int64_t{4} << 20;       // of one stream; a slower reader is disconnected
  int64_t max_connections = 4096;                    // more: 503
  std::chrono::milliseconds header_timeout{10'000};  // from the first byte to the blank line
  std::chrono::milliseconds body_timeout{120'000};   // from the blank line to the end of the body
  std::chrono::milliseconds idle_timeout{75'000};    // between requests of a connection
  std::chrono::milliseconds write_timeout{60'000};   // without progress of a write
  int n_workers = 2;                                 // threads that run handlers
};

struct HttpHandlers {
  // Decides on the head alone, before the body is read: a refusal saves receiving megabytes from someone
  // without a key. Runs on the I/O thread.
  std::function<std::optional<std::pair<HttpHead, std::string>>(const HttpRequest&)> admit;
  // Must answer every request, and may keep the reply for later. Exceptions end the connection.
  std::function<void(HttpRequest, std::shared_ptr<HttpReply>)> handle;
  // The body of an error that the HTTP layer finds itself.
  std::function<std::string(int status, std::string_view message)> error_body;
  std::function<void(const HttpLogEntry&)> log;
};

class HttpServer {
 public:
  // Binds and listens, so that an address in use is an error here. Throws kUsage, kFailure.
  HttpServer(const HttpOptions& options, HttpHandlers handlers);
  ~HttpServer();  // stops at once
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // Starts the I/O thread and the workers.
  void start();
  // No new connections or requests; waits until the running replies are complete. False when `limit` passed
  // first; the rest is then cut off by the destructor.
  bool drain(std::chrono::milliseconds limit);

  uint16_t port() const;
  std::string url() const;  // "http://127.0.0.1:8080"
  int64_t n_connections() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// True when every address that `host` stands for is a loopback address. Throws kUsage when it stands for
// none.
bool is_loopback(const std::string& host);

// "%41+b" -> "A+b". nullopt for a malformed escape or an encoded NUL.
std::optional<std::string> percent_decode(std::string_view text);

}  // namespace synod::server
