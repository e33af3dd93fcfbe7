package report

import (
	"embed"
	"encoding/base64"
	"fmt"
	"io"

	"github.com/cistern-ml/cistern/trace/internal/page"
)

//go:embed page
var files embed.FS

// scripts are the page's own files in the order of their use.
var scripts = []string{"data.js", "moments.js", "owners.js", "timeline.js", "flame.js", "holders.js", "map.js", "outofmemory.js", "outliers.js", "steps.js", "layers.js", "fragmentation.js", "kept.js", "whatif.js", "page.js"}

// Write writes the page of one or several reports, such as those of the devices of one program. The
// page is complete: it loads nothing, and its policy forbids loading. Text from a recording or from
// labels is in it as data, never as markup.
func Write(w io.Writer, reports ...*Report) error {
	if w == nil {
		return fmt.Errorf("report: Write: %w: the writer is nil", ErrInvalid)
	}
	if len(reports) == 0 {
		return fmt.Errorf("report: Write: %w: no report is given: there is nothing to show", ErrInvalid)
	}
	for _, r := range reports {
		if r == nil || r.account == nil {
			return fmt.Errorf("report: Write: %w: a nil report; use the result of FromCache or Read", ErrInvalid)
		}
	}
	data, err := encode(reports)
	if err != nil {
		return err
	}
	p := page.Page{
		Title: reports[0].account.name + " – device memory",
		Tools: `<label id="devices" hidden>Device <select id="device"></select></label>`,
		Body:  page.File(files, "page", "page.html"),
		Style: page.File(files, "page", "page.css"),
		Data: func(w io.Writer) error {
			encoded := base64.NewEncoder(base64.StdEncoding, w)
			if _, err := encoded.Write(data); err != nil {
				return err
			}
			return encoded.Close()
		},
	}
	for _, name := range scripts {
		p.Script += page.File(files, "page", name)
	}
	if err := p.Write(w); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}
