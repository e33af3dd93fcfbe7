package main

import (
	"encoding/csv"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"

	"gonum.org/v1/gonum/stat"
)

const folds = 5

// read returns the numbers of a CSV file after its header, in random order.
func read(path string) ([][]float64, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	records, err := csv.NewReader(f).ReadAll()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if len(records) <= 20*folds || len(records[0]) < 2 {
		return nil, fmt.Errorf("%s has %d lines: want a header and at least %d rows of 2 columns", path, len(records), 20*folds)
	}
	rows := make([][]float64, len(records)-1)
	for i, record := range records[1:] {
		for c, text := range record {
			v, err := strconv.ParseFloat(text, 64)
			if err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
				return nil, fmt.Errorf("%s, row %d, %s: %q, want a number", path, i+1, records[0][c], text)
			}
			rows[i] = append(rows[i], v)
		}
	}
	rand.New(rand.NewPCG(1, 1)).Shuffle(len(rows), func(i, j int) { rows[i], rows[j] = rows[j], rows[i] })
	return rows, nil
}

// friedman makes rows of the first function of Friedman's Multivariate adaptive regression splines
// (1991), with noise of a deviation of 1. The function reads 5 of the 10 columns before it.
func friedman(n int) [][]float64 {
	r := rand.New(rand.NewPCG(1, 1))
	rows := make([][]float64, n)
	for i := range rows {
		x := make([]float64, 10)
		for c := range x {
			x[c] = r.Float64()
		}
		y := 10*math.Sin(math.Pi*x[0]*x[1]) + 20*(x[2]-0.5)*(x[2]-0.5) + 10*x[3] + 5*x[4] + r.NormFloat64()
		rows[i] = append(x, y)
	}
	return rows
}

// fold returns copies of all rows except each folds-th one, and copies of these.
func fold(all [][]float64, number int) (rows, test [][]float64) {
	for i, row := range all {
		if i%folds == number {
			test = append(test, slices.Clone(row))
		} else {
			rows = append(rows, slices.Clone(row))
		}
	}
	return rows, test
}

// standardise gives each column of the rows a mean of 0 and a deviation of 1, and changes test by
// the same numbers. It returns the previous deviation of the last column.
func standardise(rows, test [][]float64) (scale float64) {
	for c := range rows[0] {
		column := make([]float64, len(rows))
		for i, row := range rows {
			column[i] = row[c]
		}
		var mean float64
		if mean, scale = stat.PopMeanStdDev(column, nil); scale == 0 {
			scale = 1 // a constant
		}
		for _, row := range slices.Concat(rows, test) {
			row[c] = (row[c] - mean) / scale
		}
	}
	return scale
}
