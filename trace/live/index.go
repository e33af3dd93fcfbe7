package live

import (
	"bytes"
	"crypto/rand"
	_ "embed"
	"html/template"
	"net/http"

	"github.com/dustin/go-humanize"

	"github.com/cistern-ml/cistern/memcache"
)

//go:embed index.html
var indexText string

var indexPage = template.Must(template.New("index").Funcs(template.FuncMap{
	"bytes": func(n int64) string { return humanize.IBytes(uint64(max(n, 0))) },
}).Parse(indexText))

// index is what the index page shows.
type index struct {
	Nonce      string // of its script and its style
	Device     string
	Allocated  memcache.Stat
	Reserved   memcache.Stat
	Retries    int64
	OOMs       int64
	Steps      int64
	Categories []memcache.Share // of what is in use
	Held       int64            // by graphs
	Graphs     []graphShare     // of Held
}

func (h *Handler) index(w http.ResponseWriter, _ *http.Request) {
	c := h.config.Cache
	stats, held := c.Stats(), c.GraphProfile()
	page := index{
		Nonce: rand.Text(), Device: c.Device().Name(), Allocated: stats.AllocatedBytes.All, Reserved: stats.ReservedBytes.All,
		Retries: stats.NumAllocRetries, OOMs: stats.NumOOMs, Steps: h.steps.count(),
		Categories: c.Profile().Sum(func(h memcache.Holding) string { return h.Category.String() }),
		Held:       held.Held, Graphs: graphShares(held),
	}
	var b bytes.Buffer
	if err := indexPage.Execute(&b, page); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", "default-src 'none'; connect-src 'self'; img-src data:; style-src 'nonce-"+page.Nonce+"'; script-src 'nonce-"+page.Nonce+"'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	_, _ = w.Write(b.Bytes()) // the client has gone
}
