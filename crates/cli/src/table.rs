//! Tables for people: columns as wide as their widest cell.

use crate::output;

/// Prints rows under a header.
pub fn print(header: &[String], rows: &[Vec<String>]) {
    Lines::new(header).print_all(rows);
}

/// A table that grows: what comes later stands under what was printed, unless it is wider.
pub struct Lines {
    header: Vec<String>,
    widths: Vec<usize>,
    begun: bool,
}

impl Lines {
    pub fn new(header: &[String]) -> Self {
        let widths = header.iter().map(|cell| cell.chars().count()).collect();
        Self { header: header.to_vec(), widths, begun: false }
    }

    pub fn print(&mut self, row: &[String]) {
        self.print_all(std::slice::from_ref(&row.to_vec()));
    }

    pub fn print_all(&mut self, rows: &[Vec<String>]) {
        print!("{}", self.text(rows));
    }

    fn text(&mut self, rows: &[Vec<String>]) -> String {
        for row in rows {
            for (width, cell) in self.widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let mut text = String::new();
        if !std::mem::replace(&mut self.begun, true) {
            text += &self.line(&self.header);
        }
        for row in rows {
            text += &self.line(row);
        }
        text
    }

    fn line(&self, row: &[String]) -> String {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&self.widths) {
            line.push_str(&output::harmless(cell));
            line.extend(std::iter::repeat_n(' ', width + 3 - cell.chars().count().min(*width)));
        }
        line.truncate(line.trim_end().len());
        line.push('\n');
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_what_was_seen() {
        let row = |cells: [&str; 2]| cells.map(str::to_owned).to_vec();
        let mut lines = Lines::new(&row(["NAME", "STATUS"]));
        assert_eq!(
            lines.text(&[row(["a", "Running"]), row(["longer", ""])]),
            "NAME     STATUS\na        Running\nlonger\n"
        );
        assert_eq!(lines.text(&[row(["b", "x"])]), "b        x\n");
        assert_eq!(lines.text(&[row(["the longest", "x"])]), "the longest   x\n");
    }
}
