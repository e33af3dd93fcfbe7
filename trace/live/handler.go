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

// Prefix is where the pages are: a Handler serves no other paths. [http.StripPrefix] is for what stands in front of it.
const Prefix = "/debug/cistern/"

// Config says what a Handler shows.
type Config struct {
	// Cache is the cache. It must be set. The pages of one that is closed show its last figures.
	Cache *memcache.Cache
	// Pool is the pool of pinned memory; nil: its statistics are left out.
	Pool *transfer.Pool
	// Allocated are totals by owner, such as the Holdings of a heap.Counter; nil: heap has none.
	Allocated func() []memcache.Holding
	// Steps is how many of the latest steps are kept; 0: 1,000.
	Steps int
	// Hosts are more names, without ports, under which the pages are served: those of this machine that
	// users type, or of a proxy. localhost, loopback addresses and the address of the connection need
	// not be listed.
	Hosts []string
}

// Handler is an http.Handler of the pages, and an expvar.Var of the statistics. It is safe for concurrent use.
type Handler struct {
	config Config
	pages  http.Handler
	since  time.Time // when New was called
	steps  stepLog
	states sampler
	slots  chan struct{} // one is taken by each answer

	watching atomic.Int64 // streams of events
	deltas   atomic.Int64 // answers to heap?seconds that wait
	patience time.Duration
	looked   func() // of a test: heap?seconds has looked, and begins to wait

	done  chan struct{} // closed by Close
	close sync.Once
}

const (
	defaultSteps = 1000
	maxSteps     = 1 << 20
	answers      = 4
)

// New makes a Handler. A configuration without a cache, or with a number of steps that can't be kept, is an error that
// wraps [ErrInvalid].
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

// ServeHTTP serves the pages below [Prefix]. A request whose Host is not the server's gets status 403; see [Config].
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	h.pages.ServeHTTP(w, r)
}

// Step takes a step's profile, for trace.ProfilerConfig.OnProfile. It waits for nobody.
func (h *Handler) Step(p trace.StepProfile) { h.steps.add(p) }

// Close ends the streams of events, and the waiting of heap?seconds, so that the shutdown of a server need not wait for those
// who watch; new ones at /debug/cistern/events get status 503. Other pages go on.
// It is idempotent.
func (h *Handler) Close() error {
	h.close.Do(func() { close(h.done) })
	return nil
}

// bounded refuses what is asked for while too many answers are made or sent.
func (h *Handler) bounded(serve http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		select {
		case h.slots <- struct{}{}:
			defer func() { <-h.slots }()
			serve(h.patient(w), r)
		default:
			busy(w, answers, "answers are being made or sent")
		}
	}
}

// busy refuses what there are too many of.
func busy(w http.ResponseWriter, n int, of string) {
	w.Header().Set("Retry-After", "1")
	http.Error(w, strconv.Itoa(n)+" "+of+": try again", http.StatusServiceUnavailable)
}

// patience is how long a client may take nothing.
const patience = 30 * time.Second

// patient gives each piece of an answer its own time, whatever the server's WriteTimeout, which is for all of it: a client
// that is slow gets everything, and one that takes nothing is cut off.
type patient struct {
	http.ResponseWriter
	control  *http.ResponseController
	patience time.Duration
}

// piece is what a client has to take in its time.
const piece = 32 << 10

func (h *Handler) patient(w http.ResponseWriter) *patient {
	return &patient{ResponseWriter: w, control: http.NewResponseController(w), patience: h.patience}
}

func (p *patient) Write(b []byte) (n int, err error) {
	for first := true; err == nil && (first || n < len(b)); first = false {
		_ = p.control.SetWriteDeadline(time.Now().Add(p.patience)) // not all writers can
		var wrote int
		wrote, err = p.ResponseWriter.Write(b[n:min(n+piece, len(b))])
		n += wrote
	}
	return n, err
}

// flag is a query parameter that is there and not "0" or "false".
func flag(r *http.Request, name string) bool {
	v := r.URL.Query().Get(name)
	return v != "" && v != "0" && v != "false"
}

// attachment says what kind of file follows, and what it is called when it is kept.
func attachment(w http.ResponseWriter, name string) {
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Disposition", `attachment; filename="`+name+`"`)
}
