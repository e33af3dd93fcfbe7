package main

import (
	"bytes"
	"fmt"
	"html"
	"math"
	"os"
	"path/filepath"

	"github.com/cistern-ml/cistern/memcache/internal/replay"
)

// panel is one program's part of a plot.
type panel struct {
	title string
	calls int
	lines []line
}

// line is the memory under one configuration.
type line struct {
	config  string
	samples []replay.Sample
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
		text = append([]byte("<!DOCTYPE html>\n<meta charset=\"utf-8\">\n<title>memreplay</title>\n"), text...)
	}
	if err := os.WriteFile(file, text, 0o644); err != nil {
		return fmt.Errorf("memreplay: %w", err)
	}
	return nil
}

// The geometry of a plot, in pixels.
const (
	plotWidth   = 960
	plotHeight  = 260
	plotLeft    = 90
	plotTop     = 30
	plotBottom  = 30
	legendLine  = 18
	plotSpacing = 24
)

var colours = []string{"#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#e377c2", "#17becf"}

// svg draws a panel below the other: reserved memory as a line, allocated memory as a dashed one.
func svg(panels []panel) []byte {
	var b bytes.Buffer
	height := plotSpacing
	for _, p := range panels {
		height += p.height()
	}
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">`+"\n",
		plotLeft+plotWidth+plotSpacing, height)
	fmt.Fprintln(&b, `<rect width="100%" height="100%" fill="white"/>`)
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

func (p panel) draw(b *bytes.Buffer) {
	var most int64 = 1
	for _, l := range p.lines {
		for _, s := range l.samples {
			most = max(most, s.Reserved, s.Allocated)
		}
	}
	fmt.Fprintf(b, `<text y="-10" font-weight="bold">%s</text>`+"\n", html.EscapeString(p.title))
	step := tick(most)
	top := (most + step - 1) / step * step
	for v := int64(0); v <= top; v += step {
		at := scaleY(v, top)
		fmt.Fprintf(b, `<path d="M0 %.1fH%d" stroke="#ddd"/><text x="-6" y="%.1f" text-anchor="end" dy="4">%s</text>`+"\n",
			at, plotWidth, at, formatBytes(v))
	}
	fmt.Fprintf(b, `<text x="0" y="%d" dy="14">0</text><text x="%d" y="%d" dy="14" text-anchor="end">%d calls</text>`+"\n",
		plotHeight, plotWidth, plotHeight, p.calls)
	for i, l := range p.lines {
		colour := colours[i%len(colours)]
		reserved := func(s replay.Sample) int64 { return s.Reserved }
		allocated := func(s replay.Sample) int64 { return s.Allocated }
		fmt.Fprintf(b, `<path d="%s" fill="none" stroke="%s" stroke-width="1.5"/>`+"\n", p.path(l, top, reserved), colour)
		fmt.Fprintf(b, `<path d="%s" fill="none" stroke="%s" stroke-dasharray="3 2"/>`+"\n", p.path(l, top, allocated), colour)
		at := plotHeight + plotBottom + i*legendLine
		fmt.Fprintf(b, `<path d="M0 %dh30" stroke="%s" stroke-width="3"/><text x="38" y="%d" dy="4">%s: reserved; dashed: allocated</text>`+"\n",
			at, colour, at, html.EscapeString(label(l.config)))
	}
}

// path is a line of steps.
func (p panel) path(l line, top int64, value func(replay.Sample) int64) string {
	var d bytes.Buffer
	d.WriteString("M0 " + fmt.Sprint(plotHeight))
	last := ""
	for _, s := range l.samples {
		y := fmt.Sprintf("V%.1f", scaleY(value(s), top))
		if y != last {
			fmt.Fprintf(&d, "H%.1f%s", float64(s.Call)/float64(max(p.calls, 1))*plotWidth, y)
		}
		last = y
	}
	fmt.Fprintf(&d, "H%d", plotWidth)
	return d.String()
}

func scaleY(v, top int64) float64 { return plotHeight * (1 - float64(v)/float64(top)) }

// tick is a distance between marks, of which three to eight fit below most.
func tick(most int64) int64 {
	unit := math.Exp2(math.Floor(math.Log2(float64(most))))
	return max(1, int64(unit/4))
}
