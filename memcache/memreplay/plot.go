package main

import (
	"bytes"
	"fmt"
	"html"
	"os"
	"path/filepath"

	"github.com/cistern-ml/cistern/internal/replay"
)

// panel is one program's part of a plot.
type panel struct {
	title string
	calls int
	lines []line
}

// line is the memory under one configuration.
type line struct {
	config              string
	reserved, allocated int64 // at the peak, in bytes
	samples             []replay.Sample
}

func checkPlot(file string) error {
	if ext := filepath.Ext(file); ext != ".svg" && ext != ".html" {
		return fmt.Errorf("-plot %s: the name must end in .svg or .html", file)
	}
	return nil
}

func writePlot(file string, panels []panel) error {
	text := svg(panels)
	if filepath.Ext(file) == ".html" {
		text = append([]byte(page), text...)
	}
	if err := os.WriteFile(file, text, 0o644); err != nil {
		return fmt.Errorf("memreplay: %w", err)
	}
	return nil
}

// page is what comes before the drawing in an HTML file.
const page = `<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark">
<title>memreplay: memory over time</title>
<style>body { margin: 0; background: #fff } @media (prefers-color-scheme: dark) { body { background: #16181d } } svg { display: block; width: 100%; max-width: 1200px; height: auto; margin: auto }</style>
`

// style are the colours, for light and dark surroundings.
const style = `<style>
.paper { fill: #fff } text { fill: #24292f } .faint { fill: #6e7781 } .grid { stroke: #d8dee4 } .axis { stroke: #8c959f }
@media (prefers-color-scheme: dark) {
.paper { fill: #16181d } text { fill: #e6e8eb } .faint { fill: #9aa4af } .grid { stroke: #30363d } .axis { stroke: #6e7681 }
}
</style>
`

// The geometry of a plot, in pixels.
const (
	plotWidth   = 960
	plotHeight  = 280
	plotLeft    = 84
	plotRight   = 36
	plotTop     = 44
	plotBottom  = 62 // marks, and the axis's name
	legendLine  = 20
	plotSpacing = 28
)

// colours can be told apart by colour-blind people, on white and on black.
var colours = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31", "#7f7fff"}

// svg draws a panel below the other.
func svg(panels []panel) []byte {
	var b bytes.Buffer
	width, height := plotLeft+plotWidth+plotRight, 0
	for _, p := range panels {
		height += p.height()
	}
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%[1]d" height="%d" font-family="system-ui, sans-serif" font-size="12">`+"\n",
		width, height)
	b.WriteString(style)
	fmt.Fprintln(&b, `<rect class="paper" width="100%" height="100%"/>`)
	y := 0
	for _, p := range panels {
		fmt.Fprintf(&b, `<g transform="translate(%d,%d)">`+"\n", plotLeft, y+plotTop)
		p.draw(&b)
		fmt.Fprintln(&b, "</g>")
		y += p.height()
	}
	fmt.Fprintln(&b, "</svg>")
	return b.Bytes()
}

func (p panel) height() int {
	return plotTop + plotHeight + plotBottom + legendLine*len(p.lines) + plotSpacing
}

// draw draws reserved memory as a strong line, and allocated memory as a thin one above a shade.
func (p panel) draw(b *bytes.Buffer) {
	var most int64 = 1
	for _, l := range p.lines {
		most = max(most, l.reserved, l.allocated)
	}
	top := drawBytes(b, most)
	drawCalls(b, p.calls)
	fmt.Fprintf(b, `<text x="0" y="-20" font-size="15" font-weight="600">%s</text>`+"\n", html.EscapeString(p.title))
	reserved := func(s replay.Sample) int64 { return s.Reserved }
	allocated := func(s replay.Sample) int64 { return s.Allocated }
	for i, l := range p.lines {
		path := p.path(l, top, allocated)
		fmt.Fprintf(b, `<path d="%sV%dH0Z" fill="%s" fill-opacity="0.08"/>`+"\n", path, plotHeight, colour(i))
		fmt.Fprintf(b, `<path d="%s" fill="none" stroke="%s" stroke-width="1" stroke-opacity="0.7"/>`+"\n", path, colour(i))
	}
	for i, l := range p.lines {
		fmt.Fprintf(b, `<path d="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", p.path(l, top, reserved), colour(i))
		p.legend(b, i)
	}
}

func colour(i int) string { return colours[i%len(colours)] }

// legend explains a line's two colours.
func (p panel) legend(b *bytes.Buffer, i int) {
	l, y := p.lines[i], plotHeight+plotBottom+i*legendLine
	fmt.Fprintf(b, `<path d="M0 %dh24" stroke="%s" stroke-width="2"/><text x="30" y="%[1]d" dy="4">reserved, peak %[3]s</text>`+"\n",
		y, colour(i), formatBytes(l.reserved))
	fmt.Fprintf(b, `<path d="M220 %dh24" stroke="%s" stroke-width="1" stroke-opacity="0.7"/><path d="M220 %[1]dh24v6h-24z" fill="%[2]s" fill-opacity="0.15"/>`+
		`<text x="250" y="%[1]d" dy="4">allocated, peak %[3]s</text>`+"\n", y, colour(i), formatBytes(l.allocated))
	name := label(l.config)
	fmt.Fprintf(b, `<text x="440" y="%d" dy="4" font-family="ui-monospace, monospace" font-size="11"><title>%s</title>%s</text>`+"\n",
		y, html.EscapeString(name), html.EscapeString(clip(name, 80)))
}

// path is a line of steps.
func (p panel) path(l line, top int64, value func(replay.Sample) int64) string {
	var d bytes.Buffer
	d.WriteString("M0 " + fmt.Sprint(plotHeight))
	last := ""
	for _, s := range l.samples {
		y := fmt.Sprintf("V%.1f", scaleY(value(s), top))
		if y != last {
			fmt.Fprintf(&d, "H%.1f%s", scaleX(s.Call, p.calls), y)
		}
		last = y
	}
	fmt.Fprintf(&d, "H%d", plotWidth)
	return d.String()
}

// clip shortens text to n characters.
func clip(text string, n int) string {
	if r := []rune(text); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return text
}
