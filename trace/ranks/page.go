package ranks

import (
	"fmt"
	"html/template"
	"io"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
)

// duration gives three digits.
func duration(d time.Duration) string {
	unit := time.Duration(1)
	for d/unit >= 1000 {
		unit *= 10
	}
	return d.Round(unit).String()
}

func size(n int64) string { return humanize.IBytes(uint64(max(n, 0))) }

// per is a share of a time or size, as a percentage.
func per[T int64 | time.Duration](part, of T) string {
	if of <= 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f%%", 100*float64(part)/float64(of))
}

// Table prints the headline, a row for each rank, and what is missing.
func (r *Report) Table(w io.Writer) error {
	if _, err := fmt.Fprintf(w, "%s\n", r.Headline()); err != nil {
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "rank\tsteps\ttime\tin collectives\twaited\theld up\tcame last\tpeak\treserved\t") // a tabwriter keeps the error for Flush
	for i, x := range r.Ranks {
		fmt.Fprintf(t, "%d\t%d\t%s\t%s\t%s\t%s\t%d\t%s\t%s\t\n", i, x.Steps, duration(x.HostTime), duration(x.CollectiveTime), duration(x.Waited),
			duration(x.HeldUp), x.Last, size(x.AllocatedPeak), size(x.ReservedPeak))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, note := range r.Notes {
		if _, err := fmt.Fprintln(w, note); err != nil {
			return err
		}
	}
	return nil
}

// HTML writes a page of the report that needs no network, no script and no other file, under a title.
func (r *Report) HTML(w io.Writer, title string) error {
	return page.Execute(w, struct {
		*Report
		Title string
		Most  int64 // bytes, of all ranks' peaks
	}{r, title, r.mostBytes()})
}

func (r *Report) mostBytes() (n int64) {
	for _, x := range r.Ranks {
		n = max(n, x.AllocatedPeak)
	}
	return n
}

// heat is how dark a cell of the matrix is, from 0 to 1.
func (r *Report) heat(d time.Duration) float64 {
	var longest time.Duration
	for _, row := range r.Waited {
		for _, x := range row {
			longest = max(longest, x)
		}
	}
	if longest == 0 {
		return 0
	}
	return float64(d) / float64(longest)
}

var page = template.Must(template.New("ranks").Funcs(template.FuncMap{
	"duration": duration,
	"bytes":    size,
	"share":    func(part, of time.Duration) string { return per(part, of) },
	"width":    func(part, of int64) string { return per(part, of) },
	"heat":     func(r *Report, d time.Duration) string { return fmt.Sprintf("%.2f", r.heat(d)) },
}).Parse(`<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{.Title}} – {{.WorldSize}} ranks</title>
<style>
body { font: 14px/1.4 system-ui, sans-serif; margin: 2em; color: #222; background: #fff }
table { border-collapse: collapse; margin: .5em 0 1.5em }
th, td { padding: .2em .7em; text-align: right; border-bottom: 1px solid #ddd; font-variant-numeric: tabular-nums }
th { font-weight: 600 } tr.straggler { background: #fde8d0 }
.bar { display: flex; width: 30em; height: 1.1em; background: #eee } .bar span { overflow: hidden; white-space: nowrap; font-size: 11px }
.activation { background: #8ecae6 } .parameter { background: #ffb703 } .gradient { background: #fb8500 } .optimizer { background: #90be6d } .other { background: #c9c9c9 }
</style>
<h1>{{.Title}}: {{.WorldSize}} ranks</h1>
<p><strong>{{.Headline}}.</strong></p>
{{range .Notes}}<p>Note: {{.}}.</p>
{{end}}<h2>Ranks</h2>
<table><tr><th>rank<th>steps<th>host time<th>device time<th>operations<th>bytes<th>replayed<th>bytes<th>in collectives<th>waited<th>of that time<th>held up<th>came last<th>waited for by others</tr>
{{range $i, $x := .Ranks}}<tr{{if eq $i $.Straggler}} class="straggler"{{end}}><td>{{$i}}<td>{{.Steps}}<td>{{duration .HostTime}}<td>{{duration .DeviceTime}}<td>{{.Collectives}}<td>{{bytes .Bytes}}<td>{{.Replayed}}<td>{{bytes .ReplayedBytes}}<td>{{duration .CollectiveTime}}<td>{{duration .Waited}}<td>{{share .Waited .CollectiveTime}}<td>{{duration .HeldUp}}<td>{{.Last}}<td>{{duration .WaitedFor}}</tr>
{{end}}</table>
<h2>Who waits for whom</h2>
<p>How long the rank of a row has waited for the rank of a column, which came last, in {{.Matched}} operations.</p>
<table><tr><th>{{range $i, $x := .Ranks}}<th>{{$i}}{{end}}</tr>
{{range $i, $row := .Waited}}<tr><th>{{$i}}{{range $j, $d := $row}}<td style="background: rgba(251, 133, 0, {{heat $.Report $d}})">{{if ne $i $j}}{{duration $d}}{{end}}{{end}}</tr>
{{end}}</table>
<h2>Memory</h2>
<p>At each rank's peak, by category.</p>
<table><tr><th>rank<th>peak<th>in step<th>reserved<th style="text-align: left">by category</tr>
{{range $i, $x := .Ranks}}<tr><td>{{$i}}<td>{{bytes .AllocatedPeak}}<td>{{.PeakStep}}<td>{{bytes .ReservedPeak}}<td><div class="bar">{{range .Categories}}<span class="{{if eq .Name "activation"}}activation{{else if eq .Name "parameter"}}parameter{{else if eq .Name "gradient"}}gradient{{else if eq .Name "optimizer state"}}optimizer{{else}}other{{end}}" style="width: {{width .Bytes $.Most}}" title="{{.Name}}: {{bytes .Bytes}}">{{.Name}} {{bytes .Bytes}}</span>{{end}}</div></tr>
{{end}}</table>
{{if .Waits}}<h2>Steps with the most waiting</h2>
<table><tr><th>step<th>waited by all</tr>
{{range .Waits}}<tr><td>{{.Step}}<td>{{duration .Waited}}</tr>
{{end}}</table>{{end}}
</html>
`))
