package ranks

import (
	"embed"
	"fmt"
	"io"

	"github.com/cistern-ml/cistern/trace/internal/page"
)

//go:embed page
var files embed.FS

// view is the data of the page's script.
type view struct {
	*Report
	Headline string `json:"headline"`
}

// HTML writes a page of the report under a title. The page is one file, which loads nothing.
func (r *Report) HTML(w io.Writer, title string) error {
	if w == nil {
		return fmt.Errorf("ranks: HTML: %w: the writer is nil", ErrInvalid)
	}
	p := page.Page{
		Title:  fmt.Sprintf("%s: %d ranks", title, r.WorldSize),
		Body:   page.File(files, "page", "page.html"),
		Style:  page.File(files, "page", "page.css"),
		Script: page.File(files, "page", "page.js"),
		Data:   page.JSON(view{r, r.Headline()}),
	}
	if err := p.Write(w); err != nil {
		return fmt.Errorf("ranks: HTML: %w", err)
	}
	return nil
}

// pageWork returns the units of work that the page takes.
func (r *Report) pageWork() (units int64) {
	for _, x := range r.Ranks {
		units += rowWork + categoryWork*int64(len(x.Categories))
	}
	return units + cellWork*int64(len(r.Waited))*int64(r.WorldSize)
}
