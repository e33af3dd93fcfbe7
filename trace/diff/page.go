package diff

import (
	"embed"
	"fmt"
	"io"
	"slices"

	"github.com/cistern-ml/cistern/trace/internal/page"
)

//go:embed page
var files embed.FS

// Write writes a page of what [Read] returned, under a title. The page is one file, which loads
// nothing.
func Write(w io.Writer, title string, diffs ...*Diff) error {
	if w == nil {
		return fmt.Errorf("diff: Write: %w: the writer is nil", ErrInvalid)
	}
	if len(diffs) == 0 || slices.Contains(diffs, nil) {
		return fmt.Errorf("diff: Write: %w: there is no Diff, or a nil one; use the result of Read", ErrInvalid)
	}
	p := page.Page{
		Title:  title,
		Tools:  `<label id="runs" hidden>Device <select id="run"></select></label>`,
		Body:   page.File(files, "page", "page.html"),
		Style:  page.File(files, "page", "page.css"),
		Script: page.File(files, "page", "page.js"),
		Data:   page.JSON(diffs),
	}
	if err := p.Write(w); err != nil {
		return fmt.Errorf("diff: %w", err)
	}
	return nil
}
