package loader_test

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/cistern-ml/cistern/transfer/loader"
)

// flat is a sample: area and rooms, standardised, 0 or 1 for each town, and the rent.
type flat struct {
	Features []float32
	Rent     float32
}

// table is a data set in memory; a slice of it is a part of the data.
type table []flat

func (t table) Len() int               { return len(t) }
func (t table) At(i int) (flat, error) { return t[i], nil }

// readTable reads a CSV file. It computes towns, means and deviations from the first train rows.
func readTable(r io.Reader, train int) (table, error) {
	rows, err := csv.NewReader(r).ReadAll()
	if err != nil || len(rows) <= train {
		return nil, errors.Join(err, fmt.Errorf("%d rows, want a header and %d", len(rows), train))
	}
	t, towns := make(table, len(rows)-1), []string{}
	for i, row := range rows[1:] {
		numbers := make([]float32, len(row)-1)
		for k, text := range row[1:] {
			v, err := strconv.ParseFloat(text, 32)
			if err != nil {
				return nil, fmt.Errorf("row %d: %w", i+1, err)
			}
			numbers[k] = float32(v)
		}
		t[i] = flat{numbers[:len(numbers)-1], numbers[len(numbers)-1]}
		if i < train && !slices.Contains(towns, row[0]) {
			towns = append(towns, row[0])
		}
	}
	for c := range t[0].Features {
		var mean, square float64
		for _, row := range t[:train] {
			v := float64(row.Features[c])
			mean, square = mean+v/float64(train), square+v*v/float64(train)
		}
		for _, row := range t {
			row.Features[c] = float32((float64(row.Features[c]) - mean) / math.Sqrt(max(square-mean*mean, 1e-9)))
		}
	}
	for i, row := range rows[1:] {
		for _, town := range towns {
			t[i].Features = append(t[i].Features, map[bool]float32{true: 1}[row[0] == town])
		}
	}
	return t, nil
}

func ExampleBatcher_table() {
	const train = 4 // rows; the rest is for tests
	data, err := readTable(strings.NewReader("town,area,rooms,rent\nBonn,30,1,400\nBonn,50,2,600\nJena,70,3,500\nKiel,90,3,800\nJena,60,2,450\n"), train)
	check(err)
	rows, err := loader.NewBatcher(data[:train], loader.BatcherConfig[flat]{Sampler: loader.Sampler{Batch: 1}})
	check(err)
	check(show[float32](rows, 0, "%5.2f\n"))
	// Output:
	// [-1.34 -1.51  1.00  0.00  0.00]
	// [-0.45 -0.30  1.00  0.00  0.00]
	// [ 0.45  0.90  0.00  1.00  0.00]
	// [ 1.34  0.90  0.00  0.00  1.00]
}
