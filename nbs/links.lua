-- nbdev links every word in backticks that is the name of something in the package: `code`, `window`, `names`. On its own module's
-- page that is what is meant; on another page only where it can mean nothing else: a class, a dotted name, a call.
local here = pandoc.path.split_extension(pandoc.path.filename(quarto.doc.input_file)):gsub("^%d+%a*_", "")

function Link(link)
  local word = link.content[1]
  local module = link.target:match("([%w_]+)%.html#")
  if #link.content == 1 and word.t == "Code" and module and module ~= here and not word.text:match("[%u%.%(]") then
    return word
  end
end
