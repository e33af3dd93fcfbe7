package live

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/cistern-ml/cistern/trace"
)

// Each client reads the log of steps at its own pace: it keeps the number of the next step that it
// wants, and waits for a channel that the next Step closes. Step therefore never blocks, however
// slow or many the clients are, and nothing is kept for a client.

// stepLog is a ring of the latest steps.
type stepLog struct {
	mu   sync.Mutex
	ring []trace.StepProfile
	n    int64         // steps ever added
	more chan struct{} // closed when the next one comes
}

func (l *stepLog) init(n int) { l.ring, l.more = make([]trace.StepProfile, n), make(chan struct{}) }

func (l *stepLog) add(p trace.StepProfile) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ring[l.n%int64(len(l.ring))] = p
	l.n++
	close(l.more)
	l.more = make(chan struct{})
}

func (l *stepLog) count() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.n
}

// latest returns up to n of the latest steps, the oldest first.
func (l *stepLog) latest(n int) []trace.StepProfile {
	steps, _, _ := l.since(max(0, l.count()-int64(n)))
	return steps
}

// since returns the steps from number from on that are still kept, the number of the first of them,
// and a channel that is closed by the next step.
func (l *stepLog) since(from int64) (steps []trace.StepProfile, first int64, more <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	first = min(max(from, l.n-int64(len(l.ring))), l.n)
	for i := first; i < l.n; i++ {
		steps = append(steps, l.ring[i%int64(len(l.ring))])
	}
	return steps, first, l.more
}

func (h *Handler) serveSteps(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Vary", "Accept")
	if strings.Contains(r.Header.Get("Accept"), "text/event-stream") {
		h.stream(h.patient(w), r, nil)
		return
	}
	h.bounded(h.listSteps)(w, r)
}

// listSteps sends the latest steps as a JSON array; ?last=N: at most N.
func (h *Handler) listSteps(w http.ResponseWriter, r *http.Request) {
	n, ok := wanted(w, r, h.config.Steps)
	if !ok {
		return
	}
	steps := h.steps.latest(n)
	if steps == nil {
		steps = []trace.StepProfile{} // [] in JSON, not null
	}
	sendJSON(w, steps)
}

// wanted returns the value of ?last, or standard without one. If it is not a valid number, wanted
// answers the request with an error, and ok is false.
func wanted(w http.ResponseWriter, r *http.Request, standard int) (n int, ok bool) {
	text := r.URL.Query().Get("last")
	if text == "" {
		return standard, true
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		http.Error(w, fmt.Sprintf("last is %q: want a number of steps", text), http.StatusBadRequest)
		return 0, false
	}
	return n, true
}
