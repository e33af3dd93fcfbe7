// Package page writes the project's HTML pages, with their common look and the scripts that they
// share. A page is a single file that works without a network.
//
// A page's own script is in one module with the shared scripts, and uses their names: el and
// replace (dom.js) make elements, bytes and duration (format.js) format figures, hue and css
// (palette.js) return colours, and table.js and chart.js have Table and Chart.
package page

import (
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"strings"
)

//go:embed files
var files embed.FS

// scripts are the shared scripts in the order of their use. Together with a page's own they are one
// module, so that a browser needs no loader, and the page's policy can name the only script that
// may run.
var scripts = []string{"dom.js", "format.js", "palette.js", "theme.js", "table.js", "chart.js"}

// Page is a page. Title is text; Tools, Body, Style and Script are markup, CSS and JavaScript of
// the program, never text of a user.
type Page struct {
	Title string
	Tools string // controls at the top, beside the theme's
	Body  string // the contents of the main element
	Style string // beside the shared one
	// Script runs after the shared scripts.
	Script string
	// Data writes the contents of the element "data", which the script reads: base64, or JSON by
	// [JSON].
	Data func(io.Writer) error
	// Connects permits connections to the server of the page.
	Connects bool
}

// JSON writes a value for [Page.Data]. No text in it can end the element that contains it.
func JSON(v any) func(io.Writer) error {
	return func(w io.Writer) error {
		text, err := json.Marshal(v) // writes < and > as \u003c and \u003e
		if err == nil {
			_, err = w.Write(text)
		}
		return err
	}
}

// Policy returns the page's Content-Security-Policy: its own script and style, and nothing else.
func (p *Page) Policy() string {
	connect := "'none'"
	if p.Connects {
		connect = "'self'"
	}
	return fmt.Sprintf("default-src 'none'; script-src '%s'; style-src '%s'; connect-src %s; img-src data:; base-uri 'none'; form-action 'none'",
		hash(p.script()), hash(p.style()), connect)
}

// Write writes the page, and returns the first error of the writer or of Data.
func (p *Page) Write(w io.Writer) error {
	title := html.EscapeString(p.Title)
	_, err := io.WriteString(w, `<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="`+p.Policy()+`">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<link rel="icon" href="data:,">
<title>`+title+`</title>
<style>`+p.style()+`</style>
</head>
<body>
<a class="skip" href="#main">Skip to the figures</a>
<header>
  <div>
    <h1 id="name">`+title+`</h1>
    <p id="about"></p>
  </div>
  <div class="tools">`+p.Tools+`<button id="theme" type="button" title="light, dark, or the system’s choice">Theme: system</button></div>
</header>
<main id="main" aria-busy="true">
  <p id="wait">Reading the data…</p>
  <noscript><p>This page needs JavaScript. Its script is part of the file; nothing is loaded from elsewhere.</p></noscript>
`+p.Body+`</main>
<div id="tip" hidden></div>
<script type="text/plain" id="data">`)
	if err != nil {
		return err
	}
	if err := p.Data(w); err != nil {
		return err
	}
	_, err = io.WriteString(w, "</script>\n<script type=\"module\">"+p.script()+"</script>\n</body>\n</html>\n")
	return err
}

func (p *Page) script() string {
	var b strings.Builder
	for _, name := range scripts {
		b.WriteString(File(files, "files", name))
	}
	return b.String() + p.Script
}

func (p *Page) style() string { return File(files, "files", "page.css") + p.Style }

// File returns an embedded file without indentation and without lines of comments, so that pages
// are smaller. Scripts begin with their name.
func File(from embed.FS, folder, name string) string {
	text, err := from.ReadFile(folder + "/" + name)
	if err != nil {
		panic(err) // the program has a wrong name
	}
	var b strings.Builder
	if strings.HasSuffix(name, ".js") {
		b.WriteString("// " + name + "\n")
	}
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimLeft(line, " \t\r\n"); line != "" && !strings.HasPrefix(line, "//") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// hash returns a text's name in a policy.
func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}
