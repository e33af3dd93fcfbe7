package live

import (
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/hosts"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/trace"
	"github.com/cistern-ml/cistern/transfer"
)

// ErrInvalid is the class of errors about wrong arguments, for errors.Is; it is device.ErrInvalid.
var ErrInvalid = device.ErrInvalid

// Prefix is the path of the pages. A Handler serves no other paths; below another prefix, use
// [http.StripPrefix].
const Prefix = "/debug/cistern/"

// Config sets what a Handler serves.
type Config struct {
	// Cache is the cache. It must be set. The pages of a closed cache show its last figures.
	Cache *memcache.Cache
	// Pool is the pool of pinned memory; nil: its statistics are missing.
	Pool *transfer.Pool
	// Allocated returns totals by owner, such as the Holdings of a heap.Counter; nil: heap has
	// none.
	Allocated func() []memcache.Holding
	// Steps is the number of the latest steps that are kept; 0: 1,000.
	Steps int
	// Hosts are further host names, without ports, for which the pages are served, such as names of
	// this machine or of a proxy. localhost, loopback addresses and the address of the connection
	// are always served.
	Hosts []string
}

// Handler is an http.Handler that serves the pages, and an expvar.Var of the statistics. It is safe
// for concurrent use.
type Handler struct {
	config Config
	pages  http.Handler
	since  time.Time // when New was called
	steps  stepLog
	states sampler
	slots  chan struct{} // one for each answer at a time

	watching atomic.Int64 // streams of events
	deltas   atomic.Int64 // waiting answers to heap?seconds
	patience time.Duration
	looked   func() // set by a test: heap?seconds begins to wait

	done  chan struct{} // closed by Close
	close sync.Once
}

const (
	defaultSteps = 1000
	maxSteps     = 1 << 20
	answers      = 4
)

// New makes a Handler. A configuration without a cache, or with a Steps that is negative or above
// 1,048,576, is an error that wraps [ErrInvalid].
func New(config Config) (*Handler, error) {
	if config.Cache == nil {
		return nil, fmt.Errorf("live: New: %w: Config.Cache is nil", ErrInvalid)
	}
	if config.Steps < 0 || config.Steps > maxSteps {
		return nil, fmt.Errorf("live: New: %w: Config.Steps is %d: want 0 to %d", ErrInvalid, config.Steps, maxSteps)
	}
	if config.Steps == 0 {
		config.Steps = defaultSteps
	}
	mux := http.NewServeMux()
	h := &Handler{config: config, pages: hosts.Check(mux, config.Hosts...), since: time.Now(), slots: make(chan struct{}, answers), patience: patience, done: make(chan struct{})}
	h.steps.init(config.Steps)
	h.states.take = h.state
	for pattern, serve := range map[string]http.HandlerFunc{
		"{$}":      h.bounded(h.index),
		"heap":     h.heap,
		"peak":     h.bounded(h.peak),
		"snapshot": h.bounded(h.snapshot),
		"report":   h.bounded(h.report),
		"stats":    h.bounded(h.stats),
		"steps":    h.serveSteps,
		"events":   h.events,
	} {
		mux.HandleFunc("GET "+Prefix+pattern, serve)
	}
	return h, nil
}

// ServeHTTP serves the pages below [Prefix]. A request for a wrong host gets status 403; see
// [Config].
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	h.pages.ServeHTTP(w, r)
}

// Step adds a step's profile; it is for trace.ProfilerConfig.OnProfile. It does not block.
func (h *Handler) Step(p trace.StepProfile) { h.steps.add(p) }

// Close ends the streams of events and the waits of heap?seconds, so that the shutdown of a server
// need not wait for their clients. New requests to /debug/cistern/events get status 503. Other
// pages are still served. It is idempotent.
func (h *Handler) Close() error {
	h.close.Do(func() { close(h.done) })
	return nil
}

// bounded refuses requests while too many answers are made or sent.
func (h *Handler) bounded(serve http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		select {
		case h.slots <- struct{}{}:
			defer func() { <-h.slots }()
			serve(h.patient(w), r)
		default:
			busy(w, answers, "responses are in progress")
		}
	}
}

// busy refuses a request because there are n of the kind.
func busy(w http.ResponseWriter, n int, of string) {
	w.Header().Set("Retry-After", "1")
	http.Error(w, strconv.Itoa(n)+" "+of+": try again", http.StatusServiceUnavailable)
}

// patience is the time for a client to read a piece.
const patience = 30 * time.Second

// patient gives each piece of an answer its own write deadline, because the server's WriteTimeout
// is for the whole answer. A slow client gets everything, and one that reads nothing is
// disconnected.
type patient struct {
	http.ResponseWriter
	control  *http.ResponseController
	patience time.Duration
}

// piece is the number of bytes that a client must read in its patience.
const piece = 32 << 10

func (h *Handler) patient(w http.ResponseWriter) *patient {
	return &patient{ResponseWriter: w, control: http.NewResponseController(w), patience: h.patience}
}

func (p *patient) Write(b []byte) (n int, err error) {
	for first := true; err == nil && (first || n < len(b)); first = false {
		_ = p.control.SetWriteDeadline(time.Now().Add(p.patience)) // not supported by all writers
		var wrote int
		wrote, err = p.ResponseWriter.Write(b[n:min(n+piece, len(b))])
		n += wrote
	}
	return n, err
}

// flag reports whether a query parameter is set and not "0" or "false".
func flag(r *http.Request, name string) bool {
	v := r.URL.Query().Get(name)
	return v != "" && v != "0" && v != "false"
}

// attachment sets the headers of a file to download.
func attachment(w http.ResponseWriter, name string) {
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Disposition", `attachment; filename="`+name+`"`)
}
