package live

import (
	"encoding/json"
	"net/http"

	"github.com/cistern-ml/cistern/transfer"
)

// statistics is the data of stats and expvar.
type statistics struct {
	Device string           `json:"device"`
	Memory map[string]int64 `json:"memory"` // as torch.cuda.memory_stats names them
	Pinned *transfer.Stats  `json:"pinned,omitempty"`
	Graphs graphs           `json:"graphs"`
	Steps  int64            `json:"steps"` // that were profiled
}

func (h *Handler) statistics() statistics {
	s := statistics{Device: h.config.Cache.Device().Name(), Memory: h.config.Cache.Stats().Map(), Graphs: graphsOf(h.config.Cache), Steps: h.steps.count()}
	if h.config.Pool != nil {
		pinned := h.config.Pool.Stats()
		s.Pinned = &pinned
	}
	return s
}

// String returns the statistics as JSON, which makes a Handler an expvar.Var.
func (h *Handler) String() string {
	text, err := json.Marshal(h.statistics())
	if err != nil {
		return "null"
	}
	return string(text)
}

func (h *Handler) stats(w http.ResponseWriter, _ *http.Request) { sendJSON(w, h.statistics()) }

func sendJSON(w http.ResponseWriter, v any) {
	text, err := json.Marshal(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(text, '\n')) // fails if the client has gone
}
