package ranks

import (
	"fmt"
	"html/template"
	"io"
	"time"
)

// matrixRanks is the largest number of ranks of which a page shows the matrix, because the page
// grows with its square.
const matrixRanks = 512

// HTML writes a page of the report under a title. The page needs no network, script or other file.
// It leaves the matrix out above 512 ranks.
func (r *Report) HTML(w io.Writer, title string) error {
	if w == nil {
		return fmt.Errorf("ranks: HTML: %w: the writer is nil", ErrInvalid)
	}
	p := view{Report: r, Title: title, MatrixRanks: matrixRanks}
	for _, x := range r.Ranks {
		p.Most = max(p.Most, x.AllocatedPeak)
	}
	for _, column := range r.Waited {
		for _, d := range column {
			p.longest = max(p.longest, d)
		}
	}
	return page.Execute(w, p)
}

// view is what the page's template shows.
type view struct {
	*Report
	Title       string
	Most        int64 // bytes, of all ranks' peaks
	MatrixRanks int
	longest     time.Duration // wait of one rank for another
}

// Row returns the cells of a rank's row. They are not part of the template, because it takes
// several times as long for ranks² cells. They consist of numbers, which need no escaping.
func (p view) Row(rank int) template.HTML {
	var b []byte
	for last := range p.WorldSize {
		if column := p.Waited[last]; column == nil || column[rank] == 0 {
			b = append(b, "<td>"...)
		} else {
			heat := float64(column[rank]) / float64(p.longest) // from 0 to 1
			b = fmt.Appendf(b, `<td style="--h:%.2f">%s`, heat, duration(column[rank]))
		}
	}
	return template.HTML(b)
}

// pageWork returns the units of work that the page takes.
func (r *Report) pageWork() (units int64) {
	for _, x := range r.Ranks {
		units += rowWork + categoryWork*int64(len(x.Categories))
	}
	if r.WorldSize <= matrixRanks {
		units += cellWork * int64(len(r.Waited)) * int64(r.WorldSize)
	}
	return units
}

var page = template.Must(template.New("ranks").Funcs(template.FuncMap{
	"duration": duration,
	"bytes":    size,
	"share":    func(part, of time.Duration) string { return per(part, of) },
	"width":    func(part, of int64) string { return per(part, of) },
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
th { font-weight: 600 } tr.straggler { background: #fde8d0 } .matrix td { background: rgb(251 133 0 / var(--h, 0)) }
.bar { display: flex; width: 30em; height: 1.1em; background: #eee } .bar span { overflow: hidden; white-space: nowrap; font-size: 11px }
.activation { background: #8ecae6 } .parameter { background: #ffb703 } .gradient { background: #fb8500 } .optimizer { background: #90be6d } .other { background: #c9c9c9 }
</style>
<h1>{{.Title}}: {{.WorldSize}} ranks</h1>
<p><strong>{{.Headline}}.</strong></p>
{{range .Notes}}<p>Note: {{.}}.</p>
{{end}}<h2>Ranks</h2>
<table><tr><th>rank<th>steps<th>host time<th>device time<th>collectives<th>collective bytes<th>replayed<th>replayed bytes<th>in collectives<th>waited<th>waited share<th>held others up<th>last in operations<th>last in steps<th>p<th>waited for by others</tr>
{{range $i, $x := .Ranks}}<tr{{if eq $i $.Straggler}} class="straggler"{{end}}><td>{{$i}}<td>{{.Steps}}<td>{{duration .HostTime}}<td>{{duration .DeviceTime}}<td>{{.Collectives}}<td>{{bytes .Bytes}}<td>{{.Replayed}}<td>{{bytes .ReplayedBytes}}<td>{{duration .CollectiveTime}}<td>{{duration .Waited}}<td>{{share .Waited .CollectiveTime}}<td>{{duration .HeldUp}}<td>{{.Last}}<td>{{.LastSteps}}<td>{{printf "%.2g" .P}}<td>{{duration .WaitedFor}}</tr>
{{end}}</table>
<h2>Who waits for whom</h2>
{{if gt .WorldSize .MatrixRanks}}<p>The matrix of {{.WorldSize}} ranks is left out: it is shown for up to {{.MatrixRanks}} ranks.</p>
{{else}}<p>How long the rank of a row has waited for the rank of a column, which came last, in {{.Matched}} operations.</p>
<table class="matrix"><tr><th>{{range $i, $x := .Ranks}}<th>{{$i}}{{end}}</tr>
{{range $i, $x := .Ranks}}<tr><th>{{$i}}{{$.Row $i}}</tr>
{{end}}</table>
{{end}}<h2>Memory</h2>
<p>At each rank's peak, by category.</p>
<table><tr><th>rank<th>allocated peak<th>in step<th>reserved peak<th style="text-align: left">by category</tr>
{{range $i, $x := .Ranks}}<tr><td>{{$i}}<td>{{bytes .AllocatedPeak}}<td>{{.PeakStep}}<td>{{bytes .ReservedPeak}}<td><div class="bar">{{range .Categories}}<span class="{{if eq .Name "activation"}}activation{{else if eq .Name "parameter"}}parameter{{else if eq .Name "gradient"}}gradient{{else if eq .Name "optimizer state"}}optimizer{{else}}other{{end}}" style="width: {{width .Bytes $.Most}}" title="{{.Name}}: {{bytes .Bytes}}">{{.Name}} {{bytes .Bytes}}</span>{{end}}</div></tr>
{{end}}</table>
{{if .Waits}}<h2>Steps with the most waiting</h2>
<table><tr><th>step<th>waited by all<th>last rank<th>held others up<th>trace</tr>
{{range .Waits}}<tr><td>{{.Step}}<td>{{duration .Waited}}<td>{{if ge .Last 0}}{{.Last}}{{end}}<td>{{duration .HeldUp}}<td>{{if .TraceURL}}<a href="{{.TraceURL}}">{{.TraceID}}</a>{{else if .TraceID}}<code>{{.TraceID}}</code>{{end}}</tr>
{{end}}</table>{{end}}
</html>
`))
