package report

import (
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"fmt"
	"html"
	"io"
	"strings"
)

//go:embed page
var files embed.FS

// scripts are the page's files in the order of their use: together they are one module, so that a browser needs no loader for
// them, and the page's policy can name the only script that may run.
var scripts = []string{"dom.js", "format.js", "data.js", "moments.js", "owners.js", "palette.js", "timeline.js", "flame.js", "holders.js",
	"map.js", "table.js", "steps.js", "kept.js", "whatif.js", "page.js"}

// Write writes the page of one or several reports, such as those of the devices of one program. The page is complete: it loads
// nothing, and its policy forbids it to. Text from a recording or from labels stands in it as data, never as markup.
func Write(w io.Writer, reports ...*Report) error {
	if w == nil {
		return fmt.Errorf("report: Write: %w: the writer is nil", ErrInvalid)
	}
	if len(reports) == 0 {
		return fmt.Errorf("report: Write: %w: no report is given: there is nothing to show", ErrInvalid)
	}
	for _, r := range reports {
		if r == nil || r.account == nil {
			return fmt.Errorf("report: Write: %w: a nil report: one comes from FromCache or Read", ErrInvalid)
		}
	}
	data, err := encode(reports)
	if err != nil {
		return err
	}
	style, script, body := file("page.css"), "", file("page.html")
	for _, name := range scripts {
		script += "// " + name + "\n\n" + file(name) + "\n"
	}
	title := reports[0].account.name
	policy := fmt.Sprintf("default-src 'none'; script-src '%s'; style-src '%s'; img-src data:; base-uri 'none'; form-action 'none'", hash(script), hash(style))
	out := &writer{w: w}
	out.write(`<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="` + policy + `">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<link rel="icon" href="data:,">
<title>` + html.EscapeString(title) + ` – device memory</title>
<style>` + style + `</style>
</head>
` + body + `<script type="application/gzip" id="data">`)
	if out.err == nil {
		encoded := base64.NewEncoder(base64.StdEncoding, out)
		_, _ = encoded.Write(data) // out keeps the error
		_ = encoded.Close()
	}
	out.write("</script>\n<script type=\"module\">" + script + "</script>\n</body>\n</html>\n")
	if out.err != nil {
		return fmt.Errorf("report: %w", out.err)
	}
	return nil
}

// file is one of the page's files.
func file(name string) string {
	text, err := files.ReadFile("page/" + name)
	if err != nil {
		panic(err) // it is compiled in
	}
	return strings.TrimSpace(string(text)) + "\n"
}

// hash is how a policy names a text.
func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

// writer keeps its first error.
type writer struct {
	w   io.Writer
	err error
}

func (w *writer) Write(p []byte) (int, error) {
	if w.err != nil {
		return 0, w.err
	}
	n, err := w.w.Write(p)
	w.err = err
	return n, err
}

func (w *writer) write(text string) { _, _ = io.WriteString(w, text) }
